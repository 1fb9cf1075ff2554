"""MCP servers: tools, prompts and resources for sessions, and our own tools for other agents (docs/mcp.md)."""
