"""The programs beside workers: metrics, callbacks, the MCP server, Flower, and the check of a worker."""
