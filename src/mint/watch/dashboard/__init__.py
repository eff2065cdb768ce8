"""The dashboard: its server, queries over rollouts, the page, and bundles of one HTML file.
It only reads run directories."""
