"""The old `/jobs` endpoints."""
