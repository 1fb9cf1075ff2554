"""Opens the stream on stdin, and recognizes a program that uses an Agent SDK of Claude Code by its first line."""

import argparse
import select
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from agentcli.cli.options import unshared_stdin
from agentcli.frontends.agent_sdk.channel import control_request
from agentcli.frontends.json_input import InputLines
from agentcli.settings.load import Config

if TYPE_CHECKING:
    from agentcli.frontends.agent_sdk.output import ControlClient

FIRST_LINE_S = 10.0  # a program that waits for our first object is not kept waiting longer


class InputStream(Struct, frozen=True):
    """The lines of stdin, and the program that writes them if it uses an Agent SDK."""

    lines: InputLines
    client: "ControlClient | None" = None


async def open_stream(options: argparse.Namespace, config: Config) -> InputStream:
    """Return the stream, after setting the flags that a program's first request stands for. Raises `UsageError`."""
    is_awaited = _is_first_line_awaited(options, config.environment)  # before a thread reads it
    lines = InputLines(unshared_stdin())
    return stream_of(lines, await lines.first(FIRST_LINE_S) if is_awaited else None, options, config)


def stream_of(lines: InputLines, first: bytes | None, options: argparse.Namespace, config: Config) -> InputStream:
    """Return the stream of these lines, whose first one is known unless it is None. Raises `UsageError`."""
    if (request := control_request(first)) is None:
        return InputStream(lines)
    from agentcli.cli.agent_sdk import make_client

    return InputStream(lines, make_client(*request, options, config))


def _is_first_line_awaited(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Return True if the first line of input is there, or an Agent SDK has started this program and will write it.

    Other programs may wait for the first object of the output before they write a line.
    """
    flags = (options.permission_prompt_tool, options.session_mirror, options.setting_sources)
    if any(flags) or environment.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"):
        return True
    return sys.stdin is not None and bool(select.select([sys.stdin], [], [], 0)[0])
