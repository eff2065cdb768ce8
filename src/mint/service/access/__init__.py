"""Access to a service: keys, scopes, quotas and usage."""
