"""Runs a tool within its time limit, and again where its failure may pass."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind, errno_name
from agentcli.tools.tool import Tool, ToolOutput

LONGEST_LIMIT_S = 300.0

# What is the same at the next try; all else may pass.
_LASTING: dict[int, ToolErrorKind] = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOENT: "not_found",
}


class Attempts(Struct, frozen=True):
    """What came of all tries. `last_error` is the failure before the last try, empty when the first one did."""

    output: ToolOutput
    retry_count: int = 0
    last_error: str = ""


async def run_with_retries(tool: Tool, run: Callable[[], Awaitable[ToolOutput]]) -> Attempts:
    """Raises `ToolError` with `retry_count` and `last_error` set; what else goes wrong is an internal_error."""
    limit, retries, last_error = tool.time_limit_s, 0, ""
    while True:
        try:
            return Attempts(await _within(tool.name, limit, run), retries, last_error)
        except ToolError as error:
            again = tool.may_be_repeated and error.kind in tool.retry.retry_on and retries < tool.retry.most
            if not again:
                error.retry_count, error.last_error = retries, last_error
                raise
            await asyncio.sleep(error.retry_after or tool.retry.delay(retries))
            retries, last_error = retries + 1, str(error)
            limit = None if limit is None else max(limit, min(limit * 2, LONGEST_LIMIT_S))


async def _within(name: str, limit_s: float | None, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await run()
    except TimeoutError as error:
        took = f"took longer than {limit_s:g} s" if limit.expired() else f"ran out of time: {error or 'no answer'}"
        raise ToolError(f"{name} {took}.", kind="timeout") from error
    except OSError as error:
        kind = _LASTING.get(error.errno or 0, "resource_error")
        raise ToolError(f"{name} failed: {error}.", kind=kind, code=errno_name(error)) from error
