"""Run directories of any size, made up, and how quickly the dashboard shows them."""
