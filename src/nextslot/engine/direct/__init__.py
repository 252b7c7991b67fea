"""Serves direct requests: callers who wait for a result on their HTTP connection, and their reservations."""
