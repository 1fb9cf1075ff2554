"""Hooks: commands, URLs, tools and models that answer events of a session (docs/hooks.md)."""
