"""Serves direct requests: callers who wait on HTTP, and their reservations."""
