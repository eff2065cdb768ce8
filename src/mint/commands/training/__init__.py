"""Commands that train, evaluate and inspect runs on this machine: train, eval, init, report, watch.
The work itself is in ``mint.jobs``, ``mint.rl`` and ``mint.watch``."""
