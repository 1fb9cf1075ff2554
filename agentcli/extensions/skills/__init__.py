"""Skills: folders with a SKILL.md, which load in three steps: name and description, instructions, resources.

- For the model: the list in the system text (`config`) and the tool `skill` (`session`).
- Slash command: `/skills` and one for each skill (`slash_commands`). Subcommand: `agentcli skills` (`subcommand`).
- `find` finds them, `skill` reads one, `activation` has the stack of active ones, `session` what they change.
- Settings: `SkillSettings` in `settings/structs.py`. Page: docs/skills.md.
"""
