"""Tries commands: runs them on overlays or copies of what they may write, and keeps or drops their changes.

Only `local` uses it. `overlay_launcher` runs as a program of its own.
"""
