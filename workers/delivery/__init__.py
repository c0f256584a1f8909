"""The general path of a call, from its message to its stored result."""
