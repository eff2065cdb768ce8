"""HTTP: the application, its routes, limits, uploads and the dashboard.

What a route does is in ``runs``, ``sampling`` and ``checkpoints``; encodings are in ``wire``.
"""
