"""Runs ripgrep, which ships with agentcli."""

from __future__ import annotations

import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.tools.tool import ToolContext

TIME_LIMIT_S = 60.0


def find_rg() -> str:
    """The `rg` of this installation, else the machine's. Raises `ToolError` (dependency_error)."""
    bundled = Path(sys.executable).parent / "rg"
    found = str(bundled) if bundled.exists() else shutil.which("rg")
    if not found:
        raise ToolError("ripgrep is missing: reinstall agentcli, or install ripgrep.", kind="dependency_error")
    return found


async def run_rg(arguments: Sequence[str], where: Path, context: ToolContext) -> bytes:
    """Its output; empty when nothing was found. Raises `ToolError` with ripgrep's own words for a bad pattern."""
    argv = [find_rg(), "--no-config", "--no-messages", "--no-require-git", *arguments]
    code, output, errors = await context.workspace.sandbox.run_program(argv, cwd=where, timeout_s=TIME_LIMIT_S)
    if code == 2 and not output:
        said = errors.decode(errors="replace").strip()
        if said:
            raise ToolError(said.removeprefix("rg: ")[:1_000], kind="invalid_parameters")
    return output


def target(path: str, context: ToolContext) -> Path:
    """A file or folder to search. Raises `ToolError` when there is none."""
    found = context.workspace.readable(path)
    try:
        mode = found.stat().st_mode
    except FileNotFoundError as error:
        raise ToolError(f"{path} does not exist.", kind="not_found") from error
    except OSError as error:
        kind: ToolErrorKind = "permission_denied" if isinstance(error, PermissionError) else "not_found"
        raise ToolError(f"{path} cannot be searched: {error.strerror}.", kind=kind) from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise ToolError(f"{path} is not a regular file.", kind="invalid_parameters")
    return found
