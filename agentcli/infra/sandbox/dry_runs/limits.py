"""Limits what a dry run may read beyond the workspace, take of the machine, and change: nobody was asked about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from agentcli.infra.sandbox.confinement import Bounds
from agentcli.infra.sandbox.mounts.hide_plan import find_places, is_real
from agentcli.infra.sandbox.mounts.protect_plan import is_inside
from agentcli.tools.dry_run import DryRunLimits

_EVERY_S = 0.25
_LEAST_FREE_MEMORY = 0.03  # of all there is: below it the kernel would soon end somebody's program
_LEAST_FREE_DISK = 500_000_000  # bytes

# Top-level folders of systems (Filesystem Hierarchy Standard 3.0, and those of Nix, Guix and snaps). What else stands
# there is somebody's data.
_SYSTEM = frozenset(
    "bin boot dev etc gnu lib lib32 lib64 libx32 nix opt proc run sbin snap sys tmp usr var lost+found".split()
)

# In a home: compilers, package managers and what they installed for everyone, and git's settings.
_TOOLCHAINS = tuple(
    """
    .asdf .bun .cabal .cargo .composer .conda .deno .dotnet .elan .fnm .gem .ghcup .goenv .jenv .julia .juliaup .m2
    .npm-global .nix-profile .nvm .opam .pub-cache .pyenv .rbenv .rustup .rvm .sdkman .stack .swiftly .virtualenvs
    .volta .yarn .local/bin .local/lib .local/pipx .local/state/nix .local/share/fnm .local/share/mise
    .local/share/pipx .local/share/pnpm .local/share/uv .local/share/virtualenvs .config/git .gitconfig .gitignore
    anaconda3 go mambaforge micromamba miniconda3 miniforge3
    """.split()
)


def without_others_data(bounds: Bounds, search_path: str) -> Bounds:
    """The bounds of a command that nobody was asked about: the home and the data of others are hidden."""
    data = [path for path in Path("/").iterdir() if path.name not in _SYSTEM]
    shown = [bounds.home / name for name in _TOOLCHAINS] + list(_installations(search_path, bounds.home))
    return replace(bounds, masked=(*bounds.masked, bounds.home, *data), readable_again=(*bounds.readable_again, *shown))


def hides(bounds: Bounds, path: Path) -> bool:
    """True if a command in these bounds cannot see what is there: the longest path that leads to it counts."""
    if not is_real(str(path)):
        return False
    shown = find_places((*bounds.readable_again, *bounds.writable, *bounds.roots))
    covers = {place.path: True for place in find_places(bounds.masked)} | {place.path: False for place in shown}
    around = [cover for cover in covers if is_inside(str(path), cover)]
    return bool(around) and covers[max(around, key=len)]


def _installations(search_path: str, home: Path) -> Iterator[Path]:
    """The folders that PATH leads to: the one around a `bin`, which programs load their libraries from."""
    for entry in map(Path, filter(None, search_path.split(":"))):
        if entry.is_absolute():
            is_large = entry.parent in {home, *home.parents}
            yield entry if is_large or entry.name not in {"bin", "sbin"} else entry.parent


class Watch:
    """Sets `sign` once the command takes too much; `why` says of what."""

    def __init__(self, folder: Path, limits: DryRunLimits) -> None:
        self.sign = asyncio.Event()
        self.why = ""
        self._folder = folder
        self._max_bytes = limits.max_bytes
        self._free_at_first = shutil.disk_usage(folder).free

    async def run(self) -> None:
        while not self.why:
            await asyncio.sleep(_EVERY_S)
            self.why = await asyncio.to_thread(self._look)
        self.sign.set()

    def _look(self) -> str:
        free = shutil.disk_usage(self._folder).free
        if free < min(_LEAST_FREE_DISK, self._free_at_first // 2):
            return "it filled the disk"
        if self._free_at_first - free > self._max_bytes and sum(_sizes_below(self._folder)) > self._max_bytes:
            return f"it wrote more than {self._max_bytes // 1_000_000:,} MB"
        return "it took the machine's memory" if _free_memory() < _LEAST_FREE_MEMORY else ""


def _sizes_below(folder: Path) -> Iterator[int]:
    """The bytes that each file takes on the disk."""
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                yield Path(where, name).lstat().st_blocks * 512


def _free_memory() -> float:
    """The part of the memory that programs can still get, tmpfs counted (proc_meminfo(5)); 1 where that is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        numbers = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return numbers["MemAvailable"] / numbers["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 1.0
