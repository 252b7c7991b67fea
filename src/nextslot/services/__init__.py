"""Services: the methods of a scheduler by subject, for Python, HTTP and the command line.

A service turns a caller's arguments into works over the store, and rows into values. The engine decides.
"""
