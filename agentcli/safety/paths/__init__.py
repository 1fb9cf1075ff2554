"""Judges paths by their text: secret files, auto-executed files, odd names, and what is outside the workspace.

Nothing here looks at a disk. Callers resolve links, and have the real path judged as well.
"""
