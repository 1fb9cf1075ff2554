"""Serves sessions to an editor over the Agent Client Protocol, version 1, on stdin and stdout (docs/acp.md)."""
