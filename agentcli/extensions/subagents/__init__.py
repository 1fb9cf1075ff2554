"""Subagents: agents with a conversation of their own that do a task for another one.

`definitions` reads and lists the kinds, `running` answers the tool `create_subagent`, `sessions` makes the session of
one. Slash commands: `slash_commands`. Settings: `AgentSettings`. Page: docs/subagents.md.
"""
