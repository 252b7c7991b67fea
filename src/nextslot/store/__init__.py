"""All code that knows SQL; it contains no rules of the product."""
