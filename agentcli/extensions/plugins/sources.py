"""Downloads repositories of plugins with git, and copies plugins out of them."""

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any

from agentcli.errors import UsageError, UserError
from agentcli.extensions.plugins.plugin import is_inside
from agentcli.settings.short_program import run_short_program

_TIMEOUT_S = 300.0
_REPOSITORY = re.compile(r"\w[\w.-]*/[\w-][\w.-]*")  # owner/repo on GitHub
_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|\w[\w.-]*@[\w.-]+:\S+")
_REVISION = re.compile(r"\w[\w./+-]*")
_LEFT_OUT = frozenset((".git", "__pycache__"))
# Nothing in a repository is run, and nobody is asked for a password.
_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0")
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "GIT_LFS_SKIP_SMUDGE": "1",
    "GCM_INTERACTIVE": "never", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file",
}  # fmt: skip


def git_source(source: Any) -> tuple[str, str, str]:
    """Return a repository's address, the branch, tag or commit to check out, and a folder in it.

    `source` is an address or `owner/repo`, which may end with `#REVISION`, or the `source` of a marketplace's entry.
    Raises `UsageError` for anything else.
    """
    path = "."
    match source:
        case str():
            address, _, revision = source.partition("#")
        case {"source": "github", "repo": str(address)} | {"source": "url" | "git-subdir", "url": str(address)}:
            revision, path = str(source.get("sha") or source.get("ref") or ""), str(source.get("path") or ".")
        case _:
            kind = source.get("source", source) if isinstance(source, dict) else source
            raise UsageError(f"Plugins from {kind!r} are not supported; use a repository or a folder.")
    if _REPOSITORY.fullmatch(address):
        address = f"https://github.com/{address}.git"
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"{address!r} is neither a folder, nor owner/repo, nor the address of a git repository.")
    if revision and not _REVISION.fullmatch(revision):
        raise UsageError(f"{revision!r} is not a branch, tag or commit.")
    return address, revision or "HEAD", path


def download(source: Any, folder: Path) -> Path:
    """Download a repository into a new `folder`, and return the path in it that `source` names. Raises `UserError`."""
    address, revision, path = git_source(source)
    folder.mkdir(exist_ok=True)
    fetch = ("fetch", "--quiet", "--no-tags", "--depth=1", "--", address, revision)
    for arguments in (("init", "--quiet", "--template="), fetch, ("checkout", "--quiet", "--detach", "FETCH_HEAD")):
        asyncio.run(_git(address, "-C", str(folder), *arguments))
    shutil.rmtree(folder / ".git", ignore_errors=True)
    return folder / path


async def _git(address: str, *arguments: str) -> None:
    """Run git, unaffected by any repository that the caller is in. Raises `UserError`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    try:
        end = await run_short_program(
            ("git", *_SETTINGS, *arguments),
            timeout_s=_TIMEOUT_S,
            max_bytes=100_000,
            environment=environment,
            ends_children=True,
        )
    except OSError as error:
        raise UserError(f"Could not run git ({error.strerror}), which gets plugins from repositories.") from error
    if end.exit_code != 0:
        message = " ".join(end.stderr.decode(errors="replace").split())
        why = f"it took more than {_TIMEOUT_S:.0f} s" if end.exit_code is None else message
        raise UserError(f"git could not get {address}: {why}")


def copy_folder(source: Path, target: Path, *, repository: Path) -> None:
    """Copy a plugin's folder; links within its repository become copies. Raises `UserError`."""

    def check_and_ignore(folder: str, names: list[str]) -> set[str]:
        """Check a folder before it is copied, and return the names that are left out."""
        for path in (Path(folder, name) for name in names if name not in _LEFT_OUT):  # links are followed
            if not is_inside(path, repository):
                raise UserError(f"{path.relative_to(source)} of the plugin leads out of its repository.")
            if not path.is_dir() and not path.is_file():
                raise UserError(f"{path.relative_to(source)} of the plugin is not a file.")
        return set(names) & _LEFT_OUT

    if not is_inside(source, repository) or not source.is_dir():
        raise UserError(f"The plugin's path does not exist or leads out of its repository: {source}")
    shutil.copytree(source, target, ignore=check_and_ignore)
