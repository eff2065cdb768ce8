"""Jobs of ``mint train``: composed from ``conf/`` and the command line, checked, run and swept.

The training loop itself is in :mod:`mint.rl`, the commands are in :mod:`mint.commands`.
"""
