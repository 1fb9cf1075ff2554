"""Runs the command of a hook: unconfined, in a process group of its own that does not outlive it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from agentcli.extensions.hooks.answers import Ended
from agentcli.settings.short_program import run_short_program

_MAX_OUTPUT_BYTES = 1_000_000  # of each stream


async def run_hook(command: str, input: bytes, *, cwd: Path, environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command with `input`; all that is left of its group is killed in any case."""
    began = time.monotonic()
    try:
        end = await run_short_program(
            ("/bin/sh", "-c", command),
            timeout_s=timeout_s,
            max_bytes=_MAX_OUTPUT_BYTES,
            environment=environment,
            cwd=cwd,
            stdin=input,
            ends_children=True,
        )
    except OSError as error:
        return Ended(None, failure=f"it could not be started ({error.strerror or error})")
    failure = f"it took longer than {timeout_s:g} s" if end.exit_code is None else ""
    out, err = (stream.decode(errors="replace") for stream in (end.stdout, end.stderr))
    return Ended(end.exit_code, out, err, failure, time.monotonic() - began)
