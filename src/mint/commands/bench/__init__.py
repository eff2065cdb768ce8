"""``mint bench``: measure a model's speed on this machine and recommend settings.
``benchmarks/`` compares with other systems, by :mod:`.ceilings` and :mod:`.timed_run` too."""
