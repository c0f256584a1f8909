"""What authors of tools, agents and extensions write against, and how their files are loaded."""
