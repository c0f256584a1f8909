"""What is measured: one module a case, each a function from a bench to a section of the report."""
