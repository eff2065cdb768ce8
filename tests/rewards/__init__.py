"""Tests of the reward library."""
