"""Keeps the tools of MCP servers small in the prompt: whole where they fit, else a stub each, described when called."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from agentcli.llm.provider import ToolSpec

BYTES_PER_TOKEN = 3.2  # of names and short descriptions in JSON, by the o200k encoding
STUB_WORDS = (12, 8, 5, 0)  # of a description, the most that fits
NOTE = "Tools named mcp__… are described in a few words: call one with {} to be told its arguments."


def fitted(specs: Sequence[ToolSpec], most_tokens: int) -> tuple[ToolSpec, ...]:
    """The tools in as much detail as fits: all of them whole, else a stub each, else only the first stubs that fit."""
    if _tokens(specs) <= most_tokens:
        return tuple(specs)
    room = most_tokens - _tokens((ToolSpec("", NOTE, {}),))
    for words in STUB_WORDS:
        stubs = [stub(spec, words) for spec in specs]
        if _tokens(stubs) <= room:
            return tuple(stubs)
    taken = accumulate(_tokens((one,)) for one in stubs)
    return tuple(one for one, tokens in zip(stubs, taken, strict=True) if tokens <= room)


def stub(spec: ToolSpec, words: int) -> ToolSpec:
    """A tool's name and the first words of its description; any arguments are accepted."""
    said = spec.description.split()
    short = " ".join(said[:words]) + (" …" if 0 < words < len(said) else "")
    return ToolSpec(spec.name, short, {"type": "object"})


def _tokens(specs: Sequence[ToolSpec]) -> float:
    return sum(len(msgspec.json.encode(spec)) for spec in specs) / BYTES_PER_TOKEN
