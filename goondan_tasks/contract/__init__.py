"""What producers and workers agree on: records, names, errors, and how values become text."""
