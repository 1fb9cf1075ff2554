"""Holds what people add to agentcli, a folder for each feature: MCP servers, skills, subagents, hooks and commands.

A folder has all of its feature: the body, the slash command (`slash_commands`) and the subcommand (`subcommand`).
"""
