"""The store on PostgreSQL: sessions, pipelined statements, the lease of a node."""
