"""Files named in a prompt become part of it: `@path`, and for small models bare names too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentcli.errors import ToolError
from agentcli.llm.messages import Block, Text
from agentcli.tools.builtin.arguments import FileRead
from agentcli.tools.builtin.file_read import read_file
from agentcli.tools.tool import Workspace

_MENTION = re.compile(r"(?<![\w@])@(?:\"([^\"]+)\"|([^\s\"'`,;]+))")
PUNCTUATION = ".:!?)]}>*_”’…。，、！？）"
_BARE_NAME = re.compile(r"(?<![\w@/.-])((?:[\w.-]+/)*[\w-]+\.[A-Za-z0-9]{1,6})(?![\w/])")


_ATTACHED = "<file path="


def typed_blocks(content: Sequence[Block]) -> list[Block]:
    """The blocks of a prompt without the files that were attached for the names in it."""
    return [
        block
        for number, block in enumerate(content)
        if not number or not (isinstance(block, Text) and block.text.startswith(_ATTACHED))
    ]


def with_attachments(
    prompt: str, workspace: Workspace, *, bare_names: bool, typed: str | None = None
) -> tuple[Block, ...]:
    """The prompt and the files it names. A name that is no readable file of the workspace stays plain text.

    `typed` is the part in which names count: what was pasted is somebody else's text.
    """
    blocks: list[Block] = [Text(prompt)]
    for name in dict.fromkeys(_names(prompt if typed is None else typed, bare_names=bare_names)):
        try:
            path = workspace.readable(name)
            status = workspace.sandbox.status(path)
            if status is None or status.kind != "file":
                continue
            output = read_file(FileRead(name), path, workspace)
        except (ToolError, OSError):  # a name that is too long is an OSError
            continue
        if isinstance(output.content, str):
            blocks.append(Text(f'{_ATTACHED}"{name}">\n{output.content}\n</file>'))
        else:
            blocks += output.content or ()
    return tuple(blocks)


def _names(prompt: str, *, bare_names: bool) -> Iterator[str]:
    for quoted, plain in _MENTION.findall(prompt):
        yield quoted or plain
        yield plain.rstrip(PUNCTUATION)
    if bare_names:
        yield from _BARE_NAME.findall(prompt)
