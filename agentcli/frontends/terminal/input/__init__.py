"""Typed text on its way to a prompt: keyboard, input area, completion, pastes, images, history, drafts.

Nothing here knows the session. Keys are bound in terminal/keys.py.
"""
