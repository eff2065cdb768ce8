"""HTTP: the application, its routes, limits, uploads and the dashboard."""
