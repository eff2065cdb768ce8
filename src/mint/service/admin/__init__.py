"""Settings, configuration files, logs and metrics of a service.

Keys and quotas are in ``access``.
"""
