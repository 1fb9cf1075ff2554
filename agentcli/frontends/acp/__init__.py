"""Serves sessions to editors over version 1 of the Agent Client Protocol, on stdin and stdout (docs/acp.md)."""
