"""Process trees: a guardian starts each command, kills its whole tree on request, and reports when none of it is left.

The guardian program imports this package outside of `nextslot`, so the package itself must import nothing.
"""
