"""Handles text typed for a prompt; this package does not know the session, and terminal/keys.py binds the keys."""
