"""Runs a tool within its time limit, and again where its failure may pass."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.tool import Tool, ToolOutput

LONGEST_LIMIT_S = 300.0

_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)  # the same at the next try


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
        async with asyncio.timeout(limit_s):
            return await run()
    except TimeoutError as error:
        raise ToolError(f"{name} took longer than {limit_s:g} s.", kind="timeout") from error
    except OSError as error:
        is_lasting = error.errno in _REFUSALS
        raise ToolError(
            f"{name} failed: {error}.", kind="permission_denied" if is_lasting else "resource_error"
        ) from error
