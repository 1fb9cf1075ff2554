"""Serves sessions to an editor over the Agent Client Protocol, version 1, on stdin and stdout.

docs/acp.md says what is supported. What a client asks for is done by the sessions, not here.
"""
