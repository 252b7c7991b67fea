"""The faces of a scheduler: its verbs by subject, as Python, HTTP and the command line use them.

A face turns what a caller says into works over the store, and their rows into values. Rules are the engine's.
"""
