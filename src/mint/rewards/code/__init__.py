"""Model code: tests, and the sandbox in which they run."""
