"""The ``mint`` command line, in folders by concern.

A command imports heavy packages when it runs, so that ``mint --help`` is quick.
"""
