"""Lists the files of a folder, nearest first, as the project's ignore rules have them."""

from __future__ import annotations

from pathlib import Path, PurePath

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileList
from agentcli.tools.builtin.ripgrep import run_rg, target
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: FileList, context: ToolContext) -> ToolOutput:
    folder = target(given.path, context)
    if not folder.is_dir():
        raise ToolError(f"{given.path} is a file: use file_read.", kind="invalid_parameters")
    names = await _names(given, folder, context)
    prefix = context.workspace.shown(folder)
    paths = _nearest_first(names, with_folders=not given.pattern, depth=given.depth)
    paths = paths if prefix == "." else [f"{prefix}/{path}" for path in paths]
    shown = paths[: given.limit] if given.limit else paths
    if given.output_level == "brief":
        shown = shown[:10]
    lines = [*shown, f"[{len(paths) - len(shown)} more]"] if len(paths) > len(shown) else shown
    return ToolOutput("\n".join(lines) or "No files.", {"paths": shown, "total": len(paths)}, f"{len(paths)} paths")


async def _names(given: FileList, folder: Path, context: ToolContext) -> set[str]:
    """The files below `folder`; bytes of a name that are no UTF-8 become U+FFFD."""
    arguments = ["--files", "--hidden", "--null", "--glob=!.git"]
    if given.include_ignored:
        arguments.append("--no-ignore")
    found: set[bytes] | None = None
    # A glob makes ripgrep list ignored files too: what is asked for is what both listings have.
    if not given.pattern or not given.include_ignored:
        found = set((await run_rg(arguments, folder, context)).split(b"\0"))
    if given.pattern:
        glob = f"--glob={given.pattern.removeprefix('./')}"
        matching = set((await run_rg([*arguments, glob], folder, context)).split(b"\0"))
        found = matching if found is None else found & matching
    return {name.decode(errors="replace") for name in found or () if name}


def _nearest_first(names: set[str], *, with_folders: bool, depth: int | None) -> list[str]:
    """Paths sorted by depth and then by name; folders end in a slash."""
    paths = set(names)
    if with_folders:
        for name in names:
            paths |= {f"{parent}/" for parent in PurePath(name).parents if str(parent) != "."}
    kept = (path for path in paths if depth is None or path.rstrip("/").count("/") < depth)
    return sorted(kept, key=lambda path: (path.rstrip("/").count("/"), path))
