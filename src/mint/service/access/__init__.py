"""Access to a service: keys, scopes, ownership of objects, quotas and usage.

Signed links of checkpoints are in ``checkpoints``.
"""
