"""The machine below: files, directory trees, processes, sandboxes, and the programs that run JavaScript."""
