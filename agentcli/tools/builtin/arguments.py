"""The arguments of the built-in tools, apart from their bodies: a request needs these, only a call needs the rest."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from agentcli.tools.text import Edit
from agentcli.tools.tool import OutputLevel


class FileRead(Struct, frozen=True):
    path: str
    offset: Annotated[int, Meta(ge=1)] | None = None
    limit: Annotated[int, Meta(ge=0)] | None = None


class FileWrite(Struct, frozen=True):
    path: str
    content: str


class FileEdit(Struct, frozen=True):
    path: str
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    edits: tuple[Edit, ...] | None = None


class FileList(Struct, frozen=True, kw_only=True):
    path: str = "."
    pattern: str | None = None
    depth: Annotated[int, Meta(ge=1)] | None = None
    include_ignored: bool = False
    limit: Annotated[int, Meta(ge=0)] = 100
    output_level: OutputLevel | None = None


class GrepSearch(Struct, frozen=True, kw_only=True):
    pattern: str
    path: str = "."
    glob: str | None = None
    type: str | None = None
    ignore_case: bool = False
    multiline: bool = False
    context: Annotated[int, Meta(ge=0, le=50)] = 0
    output_mode: Literal["content", "files", "count"] = "content"
    limit: Annotated[int, Meta(ge=0)] = 100
    output_level: OutputLevel | None = None


class Bash(Struct, frozen=True):
    command: str
    timeout_ms: Annotated[int, Meta(ge=1)] = 120_000
    cwd: str | None = None
    background: bool = False
    unconfined: bool = False
    description: str | None = None
    output_level: OutputLevel | None = None


class JobsCall(Struct, frozen=True):
    action: Literal["list", "read", "kill"]
    job_id: str | None = None


class ReadMore(Struct, frozen=True):
    result_id: str
    page: Annotated[int, Meta(ge=1)] = 2


class Recall(Struct, frozen=True):
    query: str | None = None
    id: str | None = None


class MemoryCall(Struct, frozen=True):
    command: Literal["view", "write", "delete"]
    path: str | None = None
    content: str | None = None


class AskUser(Struct, frozen=True):
    question: str
    options: tuple[str, ...] | None = None


class SkillCall(Struct, frozen=True):
    name: str = ""
    level: Literal[1, 2, 3] | None = None
    resource: str | None = None
    end: bool = False


class CreateSubagent(Struct, frozen=True, kw_only=True):
    task: str
    agent: str = "general"
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_turns: Annotated[int, Meta(ge=1)] | None = None
    max_budget_usd: Annotated[float, Meta(gt=0)] | None = None
    background: bool = False
    resume: str | None = None
    output_level: OutputLevel | None = None


class Think(Struct, frozen=True):
    thought: str


class TodoItem(Struct, frozen=True):
    content: str
    status: Literal["pending", "in_progress", "completed"]


class Todo(Struct, frozen=True):
    items: tuple[TodoItem, ...]


class WebFetch(Struct, frozen=True):
    url: str
    max_chars: Annotated[int, Meta(ge=1)] | None = None
    output_level: OutputLevel | None = None


class WebSearch(Struct, frozen=True):
    query: str
    max_results: Annotated[int, Meta(ge=1, le=20)] | None = None
