"""Commands that people write themselves (`user_commands`); trust in a project decides. Page: docs/terminal.md."""
