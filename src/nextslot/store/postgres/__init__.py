"""Stores everything in PostgreSQL: sessions, pipelined statements, the lease of a node."""
