"""One line for the person about a call: what it does, on what."""

from __future__ import annotations

from typing import Any

MAX_SUBJECT_CHARS = 300  # characters

_VERBS = {
    "file_read": ("Read", "path"),
    "file_write": ("Write", "path"),
    "file_edit": ("Edit", "path"),
    "file_list": ("List", "path"),
    "grep_search": ("Search", "pattern"),
    "bash": ("Run", "command"),
    "jobs": ("Jobs", "action"),
    "web_fetch": ("Fetch", "url"),
    "web_search": ("Search the web", "query"),
    "read_more": ("Read more", "result_id"),
    "memory": ("Memory", "command"),
    "recall": ("Recall", "query"),
    "skill": ("Skill", "name"),
    "ask_user": ("Ask", "question"),
    "create_subagent": ("Agent", "task"),
    "think": ("Think", "thought"),
    "todo": ("To-do", ""),
}


def call_title(name: str, input: dict[str, Any], longest: int = MAX_SUBJECT_CHARS) -> str:
    """`Read src/app.py`, `Run pytest -q`; for other tools the name and the first argument."""
    verb, key = _VERBS.get(name, (name, next(iter(input), "")))
    value = input.get(key)
    subject = "" if value is None else " ".join(str(value).split())
    if name == "grep_search" and input.get("path") not in (None, "."):
        subject += f" in {input['path']}"
    if len(subject) > longest:
        subject = subject[: longest - 1] + "…"
    return f"{verb} {subject}".strip()


def diff_counts(diff: str) -> str:
    """`+3 -1` of one file's unified diff."""
    marks = [line[:1] for line in diff.split("\n")[2:]]  # after the two lines that name the file
    return f"+{marks.count('+')} -{marks.count('-')}"
