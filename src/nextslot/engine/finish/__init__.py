"""Stores how jobs end, and what follows: retries, dependents, groups."""
