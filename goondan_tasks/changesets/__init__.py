"""Changesets: proposed changes of a bundle, edited in a directory of their own and committed in git."""
