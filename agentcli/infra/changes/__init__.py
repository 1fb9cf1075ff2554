"""Describes files as they were and are, and applies changes to them: for dry runs, edits, undo and checkpoints."""
