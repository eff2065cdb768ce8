"""Commands that run and manage a service: serve, keys, usage, runs, doctor.
The service itself is in ``mint.service``."""
