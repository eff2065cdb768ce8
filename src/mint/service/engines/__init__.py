"""Engine processes and the channel to them.

What runs inside such a process is in :mod:`mint.engine`.
"""
