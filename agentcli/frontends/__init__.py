"""The ways to use a session: one-shot output, JSON lines, the terminal.

A front end submits operations and shows events. It holds no agent logic, and none imports another.
"""
