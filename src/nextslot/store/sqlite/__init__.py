"""The store on one SQLite file: connections, readers, integrity checks."""
