"""What runs inside the sandboxes: plain scripts of the standard library, started by path."""
