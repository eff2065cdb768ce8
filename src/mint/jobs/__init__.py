"""Jobs of ``mint train``: composed from ``conf/`` and the command line, checked, run and swept."""
