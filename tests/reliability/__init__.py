"""Attacks on the promises of docs/reliability.md, each as a test."""
