"""The service: HTTP, store, journal, scheduling. It imports no torch; engines are processes."""
