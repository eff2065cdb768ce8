"""``mint bench``: measure a model's speed on this machine and recommend settings.

Comparisons with other systems are in ``benchmarks/``, which uses :mod:`.ceilings` and
:mod:`.timed_run` too.
"""
