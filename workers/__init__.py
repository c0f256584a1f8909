"""Who does it: what runs inside a worker process. A producer never imports this package."""
