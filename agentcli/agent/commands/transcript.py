"""A conversation as a Markdown document."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentcli.conversation.entries import Assistant, Compaction, Entry, Result, User
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.summary import call_title


def transcript(path: Iterable[Entry], title: str) -> str:
    """The prompts, answers and results on a conversation's path, without the notes for the model."""
    parts = [f"# {title}"]
    calls: dict[str, ToolUse] = {}
    for entry in path:
        match entry.body:
            case User(_, is_reminder=False) as prompt:
                parts.append(f"## Prompt\n\n{prompt.text.strip()}")
            case Assistant(content, provider, model):
                uses = [block for block in content if isinstance(block, ToolUse)]
                calls |= {use.id: use for use in uses}
                if text := "".join(block.text for block in content if isinstance(block, Text)).strip():
                    parts.append(f"## {provider}/{model}\n\n{text}")
            case Result() as result:
                parts.append(_done(result, calls.get(result.result.tool_use_id)))
            case Compaction(carried) if carried.strip():
                parts.append(f"## Summary of what came before\n\n{carried.strip()}")
            case _:
                pass
    return "\n\n".join(parts) + "\n"


def _done(result: Result, use: ToolUse | None) -> str:
    title = call_title(result.name, use.input if use else {})
    failed = " (failed)" if result.result.is_error else ""
    diff = result.structured.get("diff") if isinstance(result.structured, dict) else None
    block = _fenced(diff, "diff") if diff else _fenced(result.result.text, "")
    return f"**{title}**{failed}\n\n{block}"


def _fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any in the text."""
    longest = max((len(fence) for fence in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
