"""Stores and sends webhook messages."""
