"""What ``goondan doctor`` looks at. Each check is a pure function of what was read."""
