"""Says what a tried command may read beyond the workspace: the system, and the toolchains in the home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from agentcli.infra.sandbox.confinement import Bounds
from agentcli.infra.sandbox.mounts.hide_plan import find_places, is_real
from agentcli.infra.sandbox.mounts.protect_plan import is_inside

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


def without_others_data(bounds: Bounds, search_path: str, *, opens_hosts: bool = False) -> Bounds:
    """The bounds of a command that nobody was asked about; `search_path` is its PATH.

    The home and the data of others are hidden. No host is reached, granted or not, unless it `opens_hosts`.
    """
    data = [path for path in Path("/").iterdir() if path.name not in _SYSTEM]
    shown = [bounds.home / name for name in _TOOLCHAINS] + list(_installations(search_path, bounds.home))
    return replace(
        bounds,
        masked=(*bounds.masked, bounds.home, *data),
        readable_again=(*bounds.readable_again, *shown),
        proxy_socket=bounds.proxy_socket if opens_hosts else None,
    )


def hides(bounds: Bounds, path: Path) -> bool:
    """True if a command in these bounds cannot see what is there: the longest path that leads to it counts."""
    if not is_real(str(path)):
        return False
    shown = find_places((*bounds.readable_again, *bounds.writable, *bounds.roots))
    covers = {place.path: True for place in find_places(bounds.masked)} | {place.path: False for place in shown}
    around = [cover for cover in covers if is_inside(str(path), cover)]
    return bool(around) and covers[max(around, key=len)]


def _installations(search_path: str, home: Path) -> Iterator[Path]:
    """What PATH leads to: the folder around a `bin`, which programs load their libraries from."""
    for entry in map(Path, filter(None, search_path.split(":"))):
        if entry.is_absolute():
            is_large = entry.parent in {home, *home.parents}
            yield entry if is_large or entry.name not in {"bin", "sbin"} else entry.parent
