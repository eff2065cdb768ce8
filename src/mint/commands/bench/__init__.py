"""``mint bench``: the speed of a model on this machine, and settings that suit it.

``benchmarks/`` measures with :mod:`.ceilings` and :mod:`.timed_run` too; its peers live there.
"""
