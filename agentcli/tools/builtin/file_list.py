"""Lists the files of a folder, nearest first, as the project's ignore rules have them."""

from __future__ import annotations

from pathlib import PurePath

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileList
from agentcli.tools.builtin.searching import searchable
from agentcli.tools.sandbox import Listing
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: FileList, context: ToolContext) -> ToolOutput:
    folder, is_folder = searchable(given.path, context)
    if not is_folder:
        raise ToolError(f"{given.path} is a file: use file_read.", kind="invalid_parameters")
    listing = Listing(folder, given.pattern or "", given.include_ignored)
    names = {name.decode(errors="replace") async for name in context.workspace.sandbox.list(listing)}
    prefix = context.workspace.shown(folder)
    paths = _nearest_first(names, with_folders=not given.pattern, depth=given.depth)
    paths = paths if prefix == "." else [f"{prefix}/{path}" for path in paths]
    shown = paths[: given.limit] if given.limit else paths
    if given.output_level == "brief":
        shown = shown[:10]
    lines = [*shown, f"[{len(paths) - len(shown)} more]"] if len(paths) > len(shown) else shown
    return ToolOutput("\n".join(lines) or "No files.", {"paths": shown, "total": len(paths)}, f"{len(paths)} paths")


def _nearest_first(names: set[str], *, with_folders: bool, depth: int | None) -> list[str]:
    """Paths sorted by depth and then by name; folders end in a slash."""
    paths = set(names)
    if with_folders:
        for name in names:
            paths |= {f"{parent}/" for parent in PurePath(name).parents if str(parent) != "."}
    kept = (path for path in paths if depth is None or path.rstrip("/").count("/") < depth)
    return sorted(kept, key=lambda path: (path.rstrip("/").count("/"), path))
