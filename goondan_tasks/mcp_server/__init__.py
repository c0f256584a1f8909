"""``goondan mcp-server``: an MCP client lists an agent's tools, and its calls run on the agent's workers.

Needs the extra ``mcp``. Nothing else of the package imports these modules.
"""
