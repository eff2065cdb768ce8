"""The database: tables, migrations, sessions, search. Never tensors or tokens."""
