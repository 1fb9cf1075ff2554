"""Lists and searches files with ripgrep.

Decides nothing about which files are secret: the caller passes that in.
"""
