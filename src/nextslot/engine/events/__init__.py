"""Numbers, stores and reads events."""
