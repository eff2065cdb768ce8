"""Datums: rollouts as what the service trains on, with corrections and checks."""
