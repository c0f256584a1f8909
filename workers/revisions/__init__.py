"""The revisions of the bundle that a worker has loaded, and the one it follows."""
