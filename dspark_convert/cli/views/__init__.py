"""Documents as tables for people: one module per document, and no decisions."""
