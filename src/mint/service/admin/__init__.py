"""Settings, configuration files, logs and metrics of a service."""
