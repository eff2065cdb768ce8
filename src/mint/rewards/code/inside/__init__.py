"""Scripts that run inside the sandboxes: standard library only, started by path."""
