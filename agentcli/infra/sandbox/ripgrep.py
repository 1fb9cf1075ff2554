"""Listing and searching with ripgrep, which ships with agentcli."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.tools.ripgrep import find_rg
from agentcli.tools.sandbox import Listing, Search

TIME_LIMIT_S = 60.0
LARGEST_PROGRAM_OUTPUT = 64 * 1024 * 1024


async def list_files(listing: Listing, environment: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
    """The names below the folder, relative to it."""
    arguments = ["--files", "--hidden", "--null", "--glob=!.git"]
    if listing.include_ignored:
        arguments.append("--no-ignore")
    found: set[bytes] | None = None
    # A glob makes ripgrep list ignored files too: what is asked for is what both listings have.
    if not listing.pattern or not listing.include_ignored:
        found = set((await _run(arguments, listing.folder, environment)).split(b"\0"))
    if listing.pattern:
        glob = f"--glob={listing.pattern.removeprefix('./')}"
        matching = set((await _run([*arguments, glob], listing.folder, environment)).split(b"\0"))
        found = matching if found is None else found & matching
    for name in found or ():
        if name:
            yield name


async def search(search: Search, environment: Mapping[str, str], *, is_folder: bool) -> AsyncGenerator[bytes, None]:
    """Ripgrep's JSON messages, one a line."""
    arguments = ["--json", "--hidden", "--crlf", "--glob=!.git", "--sort=path"]
    arguments += ["--ignore-case"] if search.ignore_case else []
    arguments += ["--multiline", "--multiline-dotall"] if search.multiline else []
    arguments += [f"--glob={search.glob}"] if search.glob else []
    arguments += [f"--type={search.type}"] if search.type else []
    arguments += [f"--context={search.context}"] if search.context else []
    where = search.where
    folder, names = (where, ["."]) if is_folder else (where.parent, [where.name])
    found = await _run([*arguments, "--regexp", search.pattern, "--", *names], folder, environment)
    for line in found.split(b"\n"):
        if line:
            yield line


async def _run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> bytes:
    """Its output; empty when nothing was found. Raises `ToolError` with ripgrep's own words for a bad pattern."""
    argv = [find_rg(), "--no-config", "--no-messages", "--no-require-git", *arguments]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LARGEST_PROGRAM_OUTPUT,
        )
    except OSError as error:
        raise ToolError(f"Could not start ripgrep: {error.strerror}.", kind="resource_error") from error
    except ValueError as error:
        raise ToolError(f"Could not start ripgrep: {error}.", kind="invalid_parameters") from error
    try:
        async with asyncio.timeout(TIME_LIMIT_S):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise ToolError(f"The search took longer than {TIME_LIMIT_S:g} s.", kind="timeout") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    said = errors.decode(errors="replace").strip()
    if process.returncode == 2 and not output and said:
        raise ToolError(said.removeprefix("rg: ")[:1_000], kind="invalid_parameters")
    return output
