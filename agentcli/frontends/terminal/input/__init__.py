"""Handles text typed for a prompt, with no access to the session; terminal/keys.py binds the keys."""
