"""Run directories: written as training goes, and read to see how it went."""
