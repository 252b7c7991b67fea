"""How work is done: job types, what a handler is given, and where its files go. Knows nothing of the database."""
