"""Alembic migrations of the store, run when a service starts."""
