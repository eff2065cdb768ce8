"""mint against its peers on two CPU cores: ``make bench``, or ``python -m benchmarks.cpu``.

Every side is a process that answers commands as lines of JSON (``peer.py`` here, ``answering.py``
there), in an environment of its own where it needs one. All work on the same token ids.
"""
