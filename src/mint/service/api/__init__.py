"""The HTTP edge: the application, its routes, uploads and the dashboard."""
