"""Subagents: agents with a conversation of their own that do a task for another one (docs/subagents.md)."""
