"""Revisions of a bundle: what names one, where it is in git, and checkouts of it on this machine."""
