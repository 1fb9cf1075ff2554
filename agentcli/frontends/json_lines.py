"""Reads JSON from a pipe, one value a line."""

from __future__ import annotations

import asyncio
import codecs
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from agentcli.llm.json_text import decode_json

LONGEST_LINE = 64 * 1024 * 1024  # bytes: twice what the Messages API takes in one request
DEEPEST = 100  # levels of lists and objects: what is deeper could not be written to the log again


def read_lines(input: BinaryIO, lines: asyncio.Queue[bytes | None]) -> None:
    """Put lines into the queue from a thread, then None: a pipe's readiness cannot be waited for on every platform."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody listens any more
            with suppress(OSError):  # what cannot be read has ended
                is_first = True
                while line := input.readline(LONGEST_LINE + 1):
                    rest = line
                    line, is_first = line.removeprefix(codecs.BOM_UTF8) if is_first else line, False
                    while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
                        rest = input.readline(LONGEST_LINE + 1)
                    if line.strip():
                        loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="agentcli-stdin", daemon=True).start()


def json_in(raw: bytes) -> Any:
    """The value of a line. Raises `ValueError` that says what is wrong with it."""
    if len(raw) > LONGEST_LINE:
        raise ValueError(f"the line is longer than {LONGEST_LINE // 1024**2} MB")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    data = decode_json(raw)
    level = [data]
    for _ in range(DEEPEST):
        level = [value for outer in level for value in _values(outer) if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"JSON nested deeper than {DEEPEST} levels")
    return data


def _values(outer: Any) -> Sequence[Any]:
    if isinstance(outer, dict):
        return list(outer.values())
    return outer if isinstance(outer, list) else ()
