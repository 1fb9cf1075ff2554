"""Keeps the MCP servers of a session: when they are started, what they offer, whether that was approved."""
