"""Reaches MCP servers with the official SDK (the extra `mcp`), which is imported when the first one is connected."""
