"""Lists the files of a folder, nearest first, as the project's ignore rules have them."""

from __future__ import annotations

import os
from pathlib import PurePath

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileList
from agentcli.tools.builtin.ripgrep import run_rg, target
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: FileList, context: ToolContext) -> ToolOutput:
    folder = target(given.path, context)
    if not folder.is_dir():
        raise ToolError(f"{given.path} is a file: use file_read.", kind="invalid_parameters")
    arguments = ["--files", "--hidden", "--null", "--glob=!.git"]
    if given.include_ignored:
        arguments.append("--no-ignore")
    if given.pattern:
        arguments.append(f"--glob={given.pattern}")
    if given.depth:
        arguments.append(f"--max-depth={given.depth + 1}")  # one deeper, so that folders at the edge are seen
    found = await run_rg(arguments, folder, context)
    names = [os.fsdecode(name) for name in found.split(b"\0") if name]
    prefix = context.workspace.shown(folder)
    paths = _nearest_first(names, with_folders=not given.pattern, depth=given.depth)
    paths = paths if prefix == "." else [f"{prefix}/{path}" for path in paths]
    shown = paths[: given.limit] if given.limit else paths
    if given.output_level == "brief":
        shown = shown[:10]
    lines = [*shown, f"[{len(paths) - len(shown)} more]"] if len(paths) > len(shown) else shown
    return ToolOutput("\n".join(lines) or "No files.", {"paths": shown, "total": len(paths)}, f"{len(paths)} paths")


def _nearest_first(names: list[str], *, with_folders: bool, depth: int | None) -> list[str]:
    """Paths sorted by depth and then by name; folders end in a slash."""
    paths = set(names)
    if with_folders:
        for name in names:
            paths |= {f"{parent}/" for parent in PurePath(name).parents if str(parent) != "."}
    kept = (path for path in paths if depth is None or path.rstrip("/").count("/") < depth)
    return sorted(kept, key=lambda path: (path.rstrip("/").count("/"), path))
