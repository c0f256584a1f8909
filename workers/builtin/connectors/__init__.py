"""The built-in connectors: each is one file, with its declaration beside it, that a bundle may copy."""
