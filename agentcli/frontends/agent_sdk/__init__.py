"""Serves programs that use a Claude Code Agent SDK, over its control protocol of JSON lines."""
