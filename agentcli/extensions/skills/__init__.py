"""Skills: folders with a SKILL.md, which load in three steps: name and description, instructions, resources.

`find` finds and lists them, `skill` reads one, `activation` has the stack of active ones, what they change
and answers the tool `skill`. Slash commands: `slash_commands`. Subcommand: `agentcli skills`. Page: docs/skills.md.
"""
