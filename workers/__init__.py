"""What runs inside a worker process. Producers never import this package."""
