"""``mint bench``: measure a model's speed on this machine and recommend settings.
``benchmarks/`` also uses :mod:`.ceilings` and :mod:`.timed_run`, to compare with other systems."""
