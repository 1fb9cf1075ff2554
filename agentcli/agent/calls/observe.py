"""Decides how detailed the result of a call is to be, and makes of it what the model sees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, get_args

import msgspec

from agentcli.agent.calls.masking import Mask
from agentcli.agent.permissions.approvals import PermittedCall
from agentcli.tools.command import Grants
from agentcli.tools.observation import (
    MAX_INLINE_BYTES,
    MAX_UNPAGED_BYTES,
    cut_middle,
    data_summary,
    formatted,
    leaves_out,
    pages_of,
)
from agentcli.tools.tool import OutputLevel, Tool, ToolContext, ToolOutput


def asked_level(tool: Tool, arguments: Any) -> OutputLevel | None:
    """The output level that a call asks for; one of an MCP server may have an argument of that name for itself."""
    if not isinstance(arguments, dict):
        asked: OutputLevel | None = getattr(arguments, "output_level", None)
        return asked
    level = arguments.get("output_level")
    is_own = "output_level" in (tool.schema or {}).get("properties", {})
    return level if level in get_args(OutputLevel) and tool.server and not is_own else None


async def observed(tool: Tool, output: ToolOutput, context: ToolContext) -> ToolOutput:
    """The output with its content as text of the right length, perhaps its first page; all of it is in a data file."""
    content, full = output.content, output.full
    if content is None and output.structured is not None:
        show, value = tool.show or formatted, output.structured
        try:
            content, full = show(value, context.level), show(value, "full")
        except Exception as error:  # a caller's function: whatever it raises ends this call and nothing else
            from agentcli.tools.own_tools import failed

            raise failed(tool.name, error) from error
        if not leaves_out(value, content, full, context.level):
            full = ""
    content = "" if content is None else content
    if not isinstance(content, str) or (len(content.encode()) <= MAX_UNPAGED_BYTES and not full):
        return msgspec.structs.replace(output, content=content)
    shown, openable = await asyncio.to_thread(_shown, content, full, context)
    context.workspace.grants += Grants(readable=openable)
    return msgspec.structs.replace(output, content=shown)


def _shown(text: str, full: str, context: ToolContext) -> tuple[str, tuple[Path, ...]]:
    """A short text that says where all of it is, or the first page; and the files that may be read from now on."""
    data = context.workspace.resources.data
    if data is None:
        return cut_middle(text), ()
    is_short = len(text.encode()) <= MAX_UNPAGED_BYTES
    whole = full if is_short else text
    try:
        kept = data.store(whole.encode(), context.call_id)
    except OSError as error:
        return text if is_short else f"{cut_middle(text)}\n[the rest could not be kept: {error}]", ()
    pages = pages_of(whole)
    more = f'read_more with result_id="{context.call_id}"'
    if is_short:
        notes = f"[{more} and page=1 shows all of it{f', in {len(pages)} pages' if len(pages) > 1 else ''}]"
    else:
        notes = f"[page 1 of {len(pages)}; {more} and page=2 shows the next]"
    openable = kept.size > MAX_INLINE_BYTES
    if openable:
        file = f"{kept.path} ({kept.size:,} bytes, sha256 {kept.hash[:12]}…)"
        notes += f"\n[all of it: {file}, which file_read opens: {data_summary(whole)}]"
    return f"{(text if is_short else pages[0]).rstrip()}\n{notes}", (kept.path.resolve(),) if openable else ()


async def mask_for(mask: Mask | None, permitted: PermittedCall) -> Mask | None:
    """The mask for the output of a call that has run: a file that was granted is shown with the values it holds."""
    facts = permitted.policy.facts
    if mask is None or facts.tool.name != "file_read" or not permitted.grants.readable:
        return mask
    values = await asyncio.to_thread(facts.workspace.facts.secret_values, apart_from=facts.files[0].real)
    return mask.knowing(values)
