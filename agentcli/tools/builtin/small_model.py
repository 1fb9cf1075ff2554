"""The few tools a small model gets, with fewer arguments and shorter texts: its prompt starts at about 300 tokens.

A 1.5-billion-parameter model chose its tool better with these than with the full texts.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentcli.llm.provider import ToolSpec

# name -> text for the model, arguments it must give, arguments it may give
_TOOLS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "file_read": ("Read a text file.", ("path",), ("offset", "limit")),
    "file_edit": ("Replace text in a file that was read before.", ("path", "old_string", "new_string"), ()),
    "grep_search": (
        "Search all files for a regular expression; path limits it to one file or folder.",
        ("pattern",),
        ("path",),
    ),
    "bash": ("Run a shell command: ls, wc, git, tests, programs.", ("command",), ()),
}


def small_specs(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the specs that a small model gets, cut down."""
    return tuple(_cut_down(spec) for spec in specs if spec.name in _TOOLS)


def _cut_down(spec: ToolSpec) -> ToolSpec:
    text, required, optional = _TOOLS[spec.name]
    known = spec.input_schema["properties"]
    properties = {name: {"type": known[name]["type"]} for name in (*required, *optional)}
    return ToolSpec(spec.name, text, {"type": "object", "properties": properties, "required": list(required)})
