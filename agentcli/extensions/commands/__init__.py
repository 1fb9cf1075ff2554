"""Commands that people write themselves: Markdown files that are prompts with a name.

- `user_commands` reads the files and adds a slash command for each; it is the only way to run them.
- `templates` fills in the arguments, and the output of commands that the text names; skills use it, too.

No settings struct: trust in a project decides (`settings/trust.py`). Described in README.md and docs/terminal.md.
"""
