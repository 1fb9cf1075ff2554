"""Commands that people write themselves: Markdown files that are prompts with a name.

`user_commands` reads the files, adds a slash command for each, and fills in the arguments and the output of commands
that a text names; skills use it for theirs. There are no settings: trust in a project decides (`settings/trust.py`).
Page: docs/terminal.md.
"""
