"""Decides whether a call may run: read once (`judge`), held against rules and modes (`decide`), asked about."""
