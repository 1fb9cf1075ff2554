"""Typed text on its way to a prompt; nothing here knows the session, and keys are bound in terminal/keys.py."""
