"""Everything that knows SQL, and nothing that knows a rule of the product."""
