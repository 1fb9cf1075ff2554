"""Decides whether a call may run: read once (`judge`), held against rules and modes (`decide`), asked about.

Nothing here runs or confines a call; the sandbox holds it whatever was decided.
"""
