"""Serves programs that use an Agent SDK of Claude Code, in its control protocol of JSON lines."""
