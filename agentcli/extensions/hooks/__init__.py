"""Hooks: the person's own commands, which answer to calls, prompts and the ends of turns, in the field's JSON.

`config` finds them, `specs` reads the settings and what a hook answers, `run` fires events at the hooks of a session.
Subcommand: `agentcli hooks`. Settings: the table `hooks`, and a project's `.agentcli/hooks.json`. Page: docs/hooks.md.
"""
