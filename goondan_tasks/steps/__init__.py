"""Steps: what is fixed when one opens, where that is kept, and the tool calls that a model makes in it."""
