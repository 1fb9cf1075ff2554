"""MCP servers: their tools, prompts and resources for sessions, and agentcli's own tools for other agents.

- For the model: `servers` gives sessions the tools of all servers, `tools` makes them of what a server offers.
- Slash command: `/mcp` and the prompts of servers (`slash_commands`). Subcommand: `agentcli mcp` (`subcommand`,
  `serve`).
- One server: `server` looks after it, `client` is the protocol of whoever reaches it, `connection` reaches it with the
  SDK.
- Settings: `MCPSettings` and `mcp_servers` in `settings/structs.py`, read by `config`. Page: docs/mcp.md.
"""
