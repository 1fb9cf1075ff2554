"""Hooks: the person's own commands that answer to calls, prompts and ends of turns (docs/hooks.md)."""
