"""The commands of ``mint``, one module per noun. Nothing heavy is imported before it is needed."""
