"""The older version's profile: what its tools are called with (002)."""
