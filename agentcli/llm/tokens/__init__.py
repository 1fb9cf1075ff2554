"""Counts tokens: an estimate by bytes on the way of every request, encoders for those who ask for a count."""

from agentcli.llm.tokens.estimates import estimate, estimate_text

__all__ = ["estimate", "estimate_text"]
