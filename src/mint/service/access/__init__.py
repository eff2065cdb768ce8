"""Who may do what, and how much: keys, scopes, quotas and usage."""
