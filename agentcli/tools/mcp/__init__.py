"""Turns the tools of MCP servers into tools; `client` is the protocol that whoever reaches a server implements."""
