"""Simulates the whole scheduler on virtual time, from a seed, on a failing disk, and checks every law."""
