"""Cleans up by the notes of sessions that were killed, as their keeper or at the next start."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path

from agentcli.infra.sandbox.mounts.mount_points import NOTE, PROTECTED, locked, real_path, remove_noted
from agentcli.tools.command import Reverts

_PATIENCE_S = 15.0  # a keeper takes no longer to end what is left


def clean_up_killed_sessions(around: Path) -> Reverts:
    """Revert what killed sessions left changed, once their keepers have ended their commands. Raises nothing."""
    reverts = Reverts()
    for folder in sorted(around.iterdir()) if around.is_dir() else ():
        with suppress(OSError), locked(folder):
            if any(folder.iterdir()):  # else another session is about to begin it
                with locked(folder / NOTE, _PATIENCE_S):
                    reverts.add(found := _clean_up(folder))
                    if not found.left_changed:
                        shutil.rmtree(folder, ignore_errors=True)
    return reverts


def main() -> None:
    """Clean up as the keeper of a killed session: the argument is the descriptor of its note."""
    folder = Path(real_path(int(sys.argv[1]))).parent
    if _clean_up(folder) == Reverts():  # else the next start has something to report
        shutil.rmtree(folder, ignore_errors=True)


def _clean_up(folder: Path) -> Reverts:
    remove_noted(folder / NOTE)
    if not (folder / PROTECTED).exists():
        return Reverts()
    from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot  # seldom needed

    return ProtectedSnapshot("/").revert_by(folder / PROTECTED)
