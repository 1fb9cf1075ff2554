"""Runs commands on overlays of the folders that they may write, and applies or discards their changes."""
