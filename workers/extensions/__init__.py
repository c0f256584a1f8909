"""Extensions: loading them, and what they may do in a worker."""
