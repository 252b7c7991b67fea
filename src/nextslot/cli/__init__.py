"""The command line: people and scripts at a running server, or at a data directory. `main.main` is the entry."""
