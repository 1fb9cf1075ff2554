"""Asks one question, and tells what the answer cost."""

from scripted import scripted

from agentcli import query_sync

MODEL = scripted({"text": "It computes prices with tax."})  # or "anthropic/claude-sonnet-5-5"

done = query_sync("What does this project do?", model=MODEL)
print(done.text, f"({done.usage.output_tokens} tokens, ${done.cost_usd})")
