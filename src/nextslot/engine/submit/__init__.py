"""Accepts requests: checks them, completes them with defaults, gives each job its place in the queue."""
