"""Maps values to rows and back: a file for each table, a function for each statement."""
