"""OAuth: tokens for tools, and consent that resumes the agent (000 §12.5, 002 §8)."""
