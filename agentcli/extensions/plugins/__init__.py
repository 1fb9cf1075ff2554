"""Plugins: folders that bundle commands, subagents, skills, hooks and MCP servers (docs/plugins.md)."""
