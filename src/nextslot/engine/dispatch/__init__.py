"""Decides which job starts next, and counts what each limit has in use."""
