"""Subagents: agents with a conversation of their own that do a task for another one.

- For the model: the tool `create_subagent`, answered by `running`, and the list of kinds in the system text (`config`).
- Slash command: `/agents` and one for each kind (`slash_commands`). There is no subcommand.
- `definitions` reads the kinds, `sessions` makes the session of one.
- Settings: `AgentSettings` in `settings/structs.py`. Page: docs/subagents.md.
"""
