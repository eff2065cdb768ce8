"""Code written by models: its tests, and the sandbox in which they run.

Nothing here runs a program of a model outside the sandbox.
"""
