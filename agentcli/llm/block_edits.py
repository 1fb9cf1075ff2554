"""Reads the code blocks of a small model's answer as the edits it means: it shows a function, and does not change it.

Only files that were attached to the newest prompt are looked at. A block stands for edits where it has whole functions
of one of them, or new ones. The calls then go the way of all calls, with the diff and the question.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.llm.provider import Request

_FILE = re.compile(r'<file path="([^"\n]+\.py)">\n(.*?)\n</file>', re.DOTALL)
_NOT_SAID = ("<system-reminder>", "<file path=", "<folder path=")
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)
_BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ASKS_FOR_CHANGE = re.compile(
    r"\b(?:add|change|convert|correct|delete|fix|implement|make|mend|move|refactor|remove|rename|replace|rewrite|update)\b",
    re.IGNORECASE,
)
_TEST = re.compile(r"(?:^|/)test_[^/]*$|_test\.py$")
_IS_QUESTION = re.compile(r"\s*(?:how|what|where|which|who|why|when|explain|show)\b", re.IGNORECASE)


def block_edits(answer: str, request: Request) -> list[dict[str, Any]]:
    """The inputs of the file_edit calls that an answer to a request for a change stands for; mostly none."""
    prompt, files, made = _asked(request)
    if not files or not asks_for_change(prompt):
        return []
    changes = {place: new for block in _BLOCK.findall(answer) for place, new in _changes(block, files).items()}
    return [
        {"path": path, "old_string": old, "new_string": new}
        for (path, old), new in changes.items()
        if old.strip() != new.strip() and old not in made
    ]


def asks_for_change(prompt: str) -> bool:
    """True for a prompt that wants something done, and not explained."""
    return bool(_ASKS_FOR_CHANGE.search(prompt)) and not _IS_QUESTION.match(prompt)


def _asked(request: Request) -> tuple[str, dict[str, str], set[str]]:
    """The newest prompt, the text of each Python file that is attached to it, and what was edited since then."""
    made: set[str] = set()
    for message in reversed(request.messages):
        uses = [block for block in message.content if isinstance(block, ToolUse)]
        made |= {str(use.input.get("old_string")) for use in uses if use.name == "file_edit"}
        texts = [block.text for block in message.content if isinstance(block, Text)]
        said = [text for text in texts if not text.startswith(_NOT_SAID)]
        if message.role == "user" and said and not any(isinstance(block, ToolResult) for block in message.content):
            files = {path: _NUMBERED.sub("", text) for one in texts for path, text in _FILE.findall(one)}
            return said[0], files, made
    return "", {}, made


def _changes(block: str, files: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """For each function of a block: the file it belongs to and the text there, and what takes its place."""
    try:
        nodes = ast.parse(block).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    lines = block.split("\n")
    changes: dict[tuple[str, str], str] = {}
    added = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            new = "\n".join(lines[first - 1 : node.end_lineno])
            match [(path, old) for path, text in files.items() if (old := _function(text, node.name))]:
                case [place]:
                    changes[place] = new
                case []:
                    added.append(new)
    places = {path for path, _ in changes} or {path for path in files if not _TEST.search(path)}
    if added and len(places) == 1 and (last := _last_function(files[path := next(iter(places))])):
        changes[path, last] = "\n\n\n".join([changes.get((path, last), last), *added])
    return changes


_START = re.compile(r"^(?:@|(?:async )?def |class |\w|if |#)", re.MULTILINE)


def _function(text: str, name: str) -> str:
    """The lines of a function at the outermost level, with its decorators; the file need not parse."""
    begin = re.search(rf"^(?:@.*\n)*(?:async )?def {re.escape(name)}\b", text, re.MULTILINE)
    if begin is None:
        return ""
    end = _START.search(text, begin.end())
    return text[begin.start() : end.start() if end else len(text)].rstrip()


def _last_function(text: str) -> str:
    names = re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)
    return _function(text, names[-1]) if names else ""
