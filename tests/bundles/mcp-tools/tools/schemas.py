"""A tool whose schema has most keywords."""

handlers = {"schema_2020_12_tool": lambda ctx, input: input}
