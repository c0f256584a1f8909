"""Changesets: proposed changes of a bundle, edited in a separate directory and committed with git."""
