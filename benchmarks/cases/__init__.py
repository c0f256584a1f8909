"""What is measured: each case is a function from a bench to a section of the report."""
