"""Hooks: the person's own commands, which answer to calls, prompts and the ends of turns.

Their JSON has the shape that Claude Code gave it and other tools of the field took over.

- `specs` reads the settings and what a hook answers, `run` fires events at the hooks of a session.
- For the model: nothing but what hooks tell it. There is no slash command. Subcommand: `agentcli hooks` (`subcommand`).
- Settings: the table `hooks`, and `.agentcli/hooks.json` of a trusted project. Page: docs/hooks.md.
"""
