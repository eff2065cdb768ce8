"""The worker that holds a base model and does the maths. Imports nothing of the service."""
