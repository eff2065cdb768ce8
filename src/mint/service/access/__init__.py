"""Access to a service: keys, scopes, ownership of objects, quotas and usage."""
