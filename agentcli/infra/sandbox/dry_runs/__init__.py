"""Runs commands on overlays of what they may write, and applies or discards their changes."""
