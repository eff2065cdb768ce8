"""The surroundings of the loop: Ctrl-C, threads, and a service that stops answering.

The loop itself is in ``loop``.
"""
