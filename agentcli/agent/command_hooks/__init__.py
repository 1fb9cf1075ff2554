"""Hooks that are commands: what the person's own programs say to calls, prompts and the ends of turns.

Their JSON has the shape that Claude Code gave it and other tools of the field took over.
"""
