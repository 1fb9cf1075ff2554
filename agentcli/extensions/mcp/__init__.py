"""MCP servers: their tools, prompts and resources for sessions, and agentcli's own tools for other agents.

`config` reads the settings, `servers` gives sessions the tools of all servers, which `tools` makes of what a server
offers. `server` looks after one, `client` is the protocol of whoever reaches it, `connection` does so with the SDK.
Slash commands: `slash_commands`. Subcommand: `agentcli mcp`, `serve` of which is the server. Page: docs/mcp.md.
"""
