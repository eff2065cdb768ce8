"""Datums: rollouts as what the service trains on, with corrections and checks.

The advantages that they carry are computed in ``algorithms``.
"""
