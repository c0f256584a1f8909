"""One HTTP application with doors; ``goondan serve`` runs it. Only the command line loads it, by name."""
