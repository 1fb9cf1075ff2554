"""Reads the code blocks of a small model's answer as the edits it means: it shows a function, and does not change it.

Only files that were attached to the newest prompt are looked at. A block stands for edits where it has whole functions
of one of them, or new ones. The calls then go the way of all calls, with the diff and the question.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentcli.llm.messages import Text, ToolResult
from agentcli.llm.provider import Request

_FILE = re.compile(r'<file path="([^"\n]+\.py)">\n(.*?)\n</file>', re.DOTALL)
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
    prompt, files = _prompt(request)
    if not files or not asks_for_change(prompt):
        return []
    edits: dict[tuple[str, str], dict[str, Any]] = {}
    for block in _BLOCK.findall(answer):
        for path, old, new in _changes(block, files):
            if old.strip() != new.strip():
                edits[path, old] = {"path": path, "old_string": old, "new_string": new}
    return list(edits.values())


def asks_for_change(prompt: str) -> bool:
    """True for a prompt that wants something done, and not explained."""
    return bool(_ASKS_FOR_CHANGE.search(prompt)) and not _IS_QUESTION.match(prompt)


def _prompt(request: Request) -> tuple[str, dict[str, str]]:
    """The newest prompt without what is attached to it, and the text of each Python file that is."""
    for message in reversed(request.messages):
        texts = [block.text for block in message.content if isinstance(block, Text)]
        is_prompt = message.role == "user" and not any(isinstance(block, ToolResult) for block in message.content)
        if is_prompt and any(_FILE.search(text) for text in texts):
            files = {path: _NUMBERED.sub("", text) for text in texts for path, text in _FILE.findall(text)}
            return next((text for text in texts if not text.startswith("<")), ""), files
    return "", {}


def _changes(block: str, files: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """For each function of a block: the file it belongs to, the text there, and what takes its place."""
    try:
        nodes = ast.parse(block).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = block.split("\n")
    new = {
        node.name: "\n".join(
            lines[min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1 : node.end_lineno]
        )
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    found: dict[str, list[tuple[str, str]]] = {
        name: [(path, old) for path, text in files.items() if (old := _function(text, name))] for name in new
    }
    places = {path for held in found.values() for path, _ in held} or {path for path in files if not _TEST.search(path)}
    for name, text in new.items():
        match found[name]:
            case [(path, old)]:
                yield path, old, text
            case [] if len(places) == 1 and (last := _last_function(files[path := next(iter(places))], new)):
                yield path, last, f"{last}\n\n\n{text}"


_START = re.compile(r"^(?:@|(?:async )?def (\w+)|class |\w|if |#)", re.MULTILINE)


def _function(text: str, name: str) -> str:
    """The lines of a function at the outermost level, with its decorators; the file need not parse."""
    begin = re.search(rf"^(?:@.*\n)*(?:async )?def {re.escape(name)}\b", text, re.MULTILINE)
    if begin is None:
        return ""
    end = _START.search(text, begin.end())
    return text[begin.start() : end.start() if end else len(text)].rstrip()


def _last_function(text: str, new: Mapping[str, str]) -> str:
    names = re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)
    return _function(text, names[-1]) if names and names[-1] not in new else ""
