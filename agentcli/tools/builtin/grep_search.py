"""Searches file contents with ripgrep and reads its JSON, so that no path or line is misread."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from agentcli.tools.builtin.arguments import GrepSearch
from agentcli.tools.builtin.searching import searchable
from agentcli.tools.observation import PAGE_BYTES, cut_line
from agentcli.tools.sandbox import Search
from agentcli.tools.tool import ToolContext, ToolOutput

LONGEST_MATCH = 500  # characters of a line


async def run(given: GrepSearch, context: ToolContext) -> ToolOutput:
    where, is_folder = searchable(given.path, context)
    search = Search(
        where,
        given.pattern,
        given.glob or "",
        given.type or "",
        given.ignore_case,
        given.multiline,
        given.context if given.output_mode == "content" else 0,
    )
    rows = [msgspec.json.decode(line) async for line in context.workspace.sandbox.search(search)]
    folder = where if is_folder else where.parent
    return _output(rows, folder, given, context)


def _output(rows: list[dict[str, Any]], folder: Path, given: GrepSearch, context: ToolContext) -> ToolOutput:
    lines: list[str] = []
    matches: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    limit = 10 if given.output_level == "brief" else (given.limit or len(rows))
    size, last_shown = 0, ("", 0)
    for row in rows:
        if row["type"] not in ("match", "context"):
            continue
        data = row["data"]
        path = context.workspace.shown(folder / _text(data["path"]).removeprefix("./"))
        is_match = row["type"] == "match"
        if is_match:
            counts[path] = counts.get(path, 0) + 1
        if given.output_mode != "content":
            continue
        is_full = len(matches) >= limit or (size > PAGE_BYTES and given.limit != 0)
        if is_full and (is_match or path != last_shown[0] or data["line_number"] > last_shown[1]):
            continue  # but for the context of the last match
        text = _text(data["lines"]).removesuffix("\n").removesuffix("\r")
        if is_match:
            matches.append({"path": path, "line": data["line_number"], "text": text})
            last_shown = (path, data["line_number"] + text.count("\n") + given.context)
        for number, line in enumerate(text.split("\n"), data["line_number"]):
            mark = ":" if is_match else "-"
            lines.append(f"{path}{mark}{number}{mark}{cut_line(line, LONGEST_MATCH)}")
            size += len(lines[-1])
    total = sum(counts.values())
    if given.output_mode == "content":
        missing = total - len(matches)
    else:
        entries = list(counts.items())[:limit]
        lines = [f"{path}:{n}" if given.output_mode == "count" else path for path, n in entries]
        missing = len(counts) - len(entries)
        matches = [{"path": path, "count": n} for path, n in entries]
    if missing > 0:
        lines.append(f"[{missing} more]")
    summary = f"{total} matches in {len(counts)} files"
    return ToolOutput("\n".join(lines) or "No matches.", {"matches": matches, "total": total}, summary)


def _text(data: dict[str, str]) -> str:
    """Ripgrep gives text, or base64 where the bytes are not UTF-8."""
    return data["text"] if "text" in data else base64.b64decode(data["bytes"]).decode(errors="replace")
