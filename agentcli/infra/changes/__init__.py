"""The engine for file states, with which dry runs, edits, checkpoints and undo describe, apply and reverse changes."""
