"""The engine for file states: lets dry runs, edits, checkpoints and undo describe, apply and reverse changes."""
