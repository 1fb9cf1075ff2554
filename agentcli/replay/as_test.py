"""Writes a session as a file for pytest that plays its replies and checks what its tools do."""

from __future__ import annotations

import base64
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any

from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.masking import Mask
from agentcli.conversation.entries import Assistant, Entry
from agentcli.conversation.file_changes import FileState, real_path
from agentcli.conversation.turns import calls_in, text_of
from agentcli.errors import UserError
from agentcli.infra.checkpoints.limits import TooManyFiles
from agentcli.infra.checkpoints.listing import listed_files
from agentcli.replay.recording import Recorded, between, turns_of, with_paths
from agentcli.safety.paths.secret import is_secret
from agentcli.settings.paths import project_root

LARGEST = 5_000_000  # bytes of files
_MOST_FILES = 2_000
_LOOKING = frozenset("bash file_list grep_search".split())  # may look at any file
_ENDED = {"text": "(The recording ends here.)"}


def as_test(
    info: SessionInfo, entries: Sequence[Entry], get: Callable[[str], bytes], mask: Mask | None
) -> tuple[str, int]:
    """The text of the test, and in how many places a secret was masked. `get` gives contents of checkpoints by id.

    Raises `UserError` for files of more than 5 MB, and for a session that no test could play.
    """
    files = _Files(project_root(Path(info.cwd)), get)
    turns = turns_of(entries)
    _refuse_foreign_changes(turns)
    start = files.at_start(turns)
    told = []
    for turn in turns:
        edits = start if turn.number == 1 else {}
        edits |= files.edited({change.path: change.after for change in between(entries, turn)})
        first = {change.path: change.before for change in reversed([*turn.changes()])}
        edits |= files.edited(first)
        files.states |= {change.path: change.after for change in turn.changes()}
        told.append({"files": edits, "prompt": turn.prompt.text, "replies": [*_replies(turn)]})
    changed = {change.path for turn in turns for change in turn.changes()}
    after = files.written({path: state for path, state in files.states.items() if path in changed})
    if files.size > LARGEST:
        raise UserError(f"The session's files are {files.size / 1e6:.1f} MB: a test holds up to {LARGEST / 1e6:g} MB.")
    fates = {id: (turn, turn.fate(id)) for turn in turns for id in turn.calls}
    value = {
        "turns": told,
        "expected": {id: turn.results[id].result.text for id, (turn, fate) in fates.items() if fate == "again"},
        "refused": {
            id: turn.refusal(id) if fate == "denied" else "It is not made again."
            for id, (turn, fate) in fates.items()
            if fate != "again"
        },
        "after": after,
    }
    value = with_paths(value, str(files.root), "{root}")
    value, places = mask.written(value) if mask else (value, 0)
    parts = {
        **value,
        "executable": sorted(files.executable),
        "tried": [id for id, (turn, fate) in fates.items() if turn.was_tried(id)],
        "answers": {id: turn.answers(id) for id, (turn, _) in fates.items() if turn.answers(id)},
        "folder": str(Path(info.cwd).relative_to(files.root)),
        "mode": next((turn.mode for turn in turns if turn.mode), "default"),
    }
    literals = {name: pformat(part, width=116, sort_dicts=False) for name, part in parts.items()}
    about = {
        "id": info.id,
        "title": mask.text(info.title) if mask else info.title,
        "date": time.strftime("%Y-%m-%d", time.localtime(info.created)),
        "model": _model(entries),
    }
    plain = {name: re.sub(r'[\\"]', "'", ascii(text)[1:-1]) for name, text in about.items()}  # for a docstring
    template = Template(Path(__file__).with_name("test_template.txt").read_text("utf-8"))
    return template.substitute(literals | plain), places


class _Files:
    """The workspace's files as the test will have them, turn by turn; `size` is what they take in it."""

    def __init__(self, root: Path, get: Callable[[str], bytes]) -> None:
        self.root = root
        self.states: dict[str, FileState | None] = {}
        self.executable: set[str] = set()
        self.size = 0
        self._get = get

    def at_start(self, turns: Sequence[Recorded]) -> dict[str, Any]:
        """Those that the session looked at and never changed, as they are now."""
        changed = {real_path(change.path) for turn in turns for change in turn.changes()}
        found = {}
        for name in self._looked_at(turns):
            place = self.root / name
            if str(place) not in changed and place.is_file() and not is_secret(place, Path.home()):
                found[name] = self._stored(name, place.read_bytes(), place.stat().st_mode)
        return found

    def _looked_at(self, turns: Sequence[Recorded]) -> Iterator[str]:
        uses = [use for turn in turns for use in turn.calls.values()]
        if any(use.name in _LOOKING for use in uses):
            try:
                listed = sorted(listed_files(str(self.root), _MOST_FILES).files)
            except (TooManyFiles, OSError):
                listed = []
            if sum((self.root / name).lstat().st_size for name in listed) <= LARGEST:
                yield from listed
        for use in uses:
            if isinstance(path := use.input.get("path"), str):
                name = os.path.relpath(self.root / path, self.root)
                if not name.startswith(".."):
                    yield name

    def edited(self, wanted: dict[str, FileState | None]) -> dict[str, Any]:
        """What has to be written for these states."""
        edits = {path: state for path, state in wanted.items() if self.states.get(path) != state}
        self.states |= edits
        return self.written(edits)

    def written(self, states: dict[str, FileState | None]) -> dict[str, Any]:
        inside = ((Path(real_path(path)), state) for path, state in states.items())
        return {
            str(path.relative_to(self.root)): self._of_state(str(path.relative_to(self.root)), state)
            for path, state in inside
            if path.is_relative_to(self.root) and (state is None or state.kind == "file")
        }

    def _of_state(self, name: str, state: FileState | None) -> Any:
        if state is None:
            return None
        try:
            return self._stored(name, self._get(state.content), state.mode)
        except OSError as error:
            raise UserError(f"What {name} held is not in the checkpoints any more ({error}).") from error

    def _stored(self, name: str, content: bytes, mode: int) -> Any:
        self.size += len(content)
        if mode & 0o100:
            self.executable.add(name)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return {"base85": base64.b85encode(zlib.compress(content)).decode()}


def _replies(turn: Recorded) -> Iterator[dict[str, Any]]:
    """The replies as a script; one that was not gone on with is, so that the next turn begins with its own."""
    reply = None
    for _, reply in turn.replies:
        calls = [{"name": use.name, "input": use.input, "id": use.id} for use in calls_in(reply)]
        yield {"text": text_of(reply), **({"tool_calls": calls} if calls else {})}
    if reply is None or calls_in(reply):
        yield _ENDED


def _refuse_foreign_changes(turns: Sequence[Recorded]) -> None:
    for turn in turns:
        for id, use in turn.calls.items():
            if turn.fate(id) == "recorded" and any(turn.changes(id)):
                raise UserError(
                    f"{use.name} changed files in turn {turn.number} and cannot be made again: no test of it."
                )


def _model(entries: Sequence[Entry]) -> str:
    replies = (entry.body for entry in reversed(entries) if isinstance(entry.body, Assistant))
    return next((f"{reply.provider}/{reply.model}" for reply in replies), "no model")
