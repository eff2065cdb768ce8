"""The dashboard: its server, queries over rollouts, the page, and bundles in one HTML file.
It only reads run directories."""
