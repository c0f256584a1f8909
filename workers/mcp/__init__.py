"""MCP servers as an agent's tools: connections, supervision, names, results (extension ``mcp``)."""
