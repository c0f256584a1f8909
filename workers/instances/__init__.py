"""The instances on this machine: their directories and the paths in them."""
