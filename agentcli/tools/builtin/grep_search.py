"""Searches file contents with ripgrep: its answers, in the order of their paths."""

from __future__ import annotations

from typing import Any

from agentcli.tools.builtin.arguments import GrepSearch
from agentcli.tools.builtin.matches import MatchCollector, MatchedFiles, Matches
from agentcli.tools.builtin.searching import Target, relative_glob, remarks, search_with_literal_brackets, searchable
from agentcli.tools.observation import beside
from agentcli.tools.sandbox import Search, SearchOutcome
from agentcli.tools.tool import ToolContext, ToolOutput

BRIEF_MATCHES = 10
_NAMED_BINARIES = 3


async def run(given: GrepSearch, context: ToolContext) -> ToolOutput:
    place = searchable(given.path, context)
    most = BRIEF_MATCHES if "brief" in (given.output_level, context.level) else given.limit
    workspace = context.workspace

    async def look(glob: str) -> tuple[MatchCollector, SearchOutcome]:
        search = Search(
            place.path,
            given.pattern,
            glob,
            type=given.type or "",
            ignore_case=given.ignore_case,
            multiline=given.multiline,
            context=given.context,
            mode=given.output_mode,
            base=place.base,
        )
        found = _collector(given, place, most=most)
        return found, await workspace.sandbox.search(search, found.add, context.all_grants)

    found, looked = await search_with_literal_brackets(
        relative_glob(given.glob, place), look, has_found=lambda result: result[0].files > 0
    )
    return _output(found, looked, given, place)


def _collector(given: GrepSearch, place: Target, *, most: int) -> MatchCollector:
    if given.output_mode != "content":
        return MatchedFiles(most, are_counted=given.output_mode == "count", show=place.show)
    has_marks = given.multiline or given.context > 0
    return Matches(most, has_marks=has_marks, context=given.context, show=place.show)


def _output(found: MatchCollector, looked: SearchOutcome, given: GrepSearch, place: Target) -> ToolOutput:
    collected = found.collected()
    lines = collected.lines or ["No matches."]
    if not collected.lines and "$" in given.pattern:
        lines.append(r"[before CRLF, $ does not match: use \r?$ where files may have such line ends]")
    if collected.left_out:
        lines.append(f"[{collected.left_out} more]")
    if looked.binary and given.output_mode == "content":
        lines.append(_binary_note([place.show(path) for path in looked.binary]))
    content = "\n".join([*lines, *remarks(looked)])

    def structured() -> dict[str, Any]:
        answer = {"matches": collected.entries(), "total": found.total}
        return {**answer, "timed_out": True} if looked.timed_out else answer

    matches = f"{found.total} match{'' if found.total == 1 else 'es'} in "
    files = f"{found.files} file{'' if found.files == 1 else 's'}"
    summary = files if given.output_mode == "files" else matches + files
    return ToolOutput(content, beside(content, structured), summary)


def _binary_note(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED_BINARIES} more" if len(paths) > _NAMED_BINARIES else ""
    return f"[matches, but is binary: not shown from its first NUL byte on: {', '.join(paths[:_NAMED_BINARIES])}{more}]"
