"""A call between its message and its stored result."""
