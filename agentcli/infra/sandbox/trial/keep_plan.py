"""Writes down what is about to be kept, so that a keep in the middle of which agentcli dies is finished later."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentcli.infra.sandbox.trial.tree_changes import Piece
from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched
from agentcli.infra.sandbox.trial.tree_keeping import keep_pieces
from agentcli.infra.sandbox.trial.try_folders import left_behind
from agentcli.tools.trial import Kept, TriedChange

PLAN = "plan"


def write_plan(folder: Path, pieces: Sequence[Piece]) -> None:
    """Note pieces in the folder of their try, for good. Raises `OSError`."""
    rows = [
        {
            "change": {name: getattr(piece.change, name) for name in ("name", "kind", "what")},
            "area": piece.area,
            "paths": piece.paths,
            "root": piece.root,
            "before": _restricted(piece.touched.before, piece.paths),
            "after": _restricted(piece.touched.after, piece.paths),
            "stale": [path for path in piece.paths if path in piece.touched.stale],
        }
        for piece in pieces
    ]
    with (folder / f"{PLAN}.new").open("w") as file:
        json.dump(rows, file)  # names that are no text are escaped, where msgspec refuses them
        file.flush()
        os.fsync(file.fileno())
    (folder / f"{PLAN}.new").rename(folder / PLAN)


def finish_interrupted(tries: Path) -> str:
    """Finish what killed sessions had begun to keep, drop the rest of what they tried, and say so. Raises nothing."""
    finished = [kept for folder in left_behind(tries) if (kept := _finish_plan(folder)) is not None]
    names = [name for kept in finished for name in kept.names]
    conflicts = [conflict for kept in finished for conflict in kept.conflicts]
    said = []
    if names:
        said.append(f"A session that was killed had begun to keep changes of a command; kept now: {', '.join(names)}.")
    said += [f"{conflict.name} was not kept: {conflict.why}." for conflict in conflicts]
    return " ".join(said)


def _finish_plan(folder: Path) -> Kept | None:
    """Finish a keep that was interrupted; None where none was. Raises nothing."""
    try:
        rows = json.loads((folder / PLAN).read_text())
    except (OSError, ValueError):
        return None
    kept = keep_pieces([_piece(row) for row in rows], folder.name, is_resumed=True)
    (folder / PLAN).unlink(missing_ok=True)
    return kept


def _restricted(entries: dict[str, Entry], paths: Sequence[str]) -> dict[str, Entry]:
    """The entries at these paths, and of the folders around them."""
    around = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    return {path: entries[path] for path in (*sorted(around), *paths) if path in entries}


def _piece(row: dict[str, Any]) -> Piece:
    touched = Touched(_entries(row["before"]), _entries(row["after"]), {*row["stale"]})
    return Piece(TriedChange(**row["change"]), row["area"], touched, tuple(row["paths"]), row["root"])


def _entries(rows: dict[str, list[Any]]) -> dict[str, Entry]:
    return {
        path: Entry(kind, tuple(identity), mode, size, (owner[0], owner[1]), target, where)
        for path, (kind, identity, mode, size, owner, target, where) in rows.items()
    }
