"""Serves programs that use an Agent SDK of Claude Code: its control protocol, over lines of JSON."""
