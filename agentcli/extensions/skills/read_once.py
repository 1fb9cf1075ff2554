"""Keeps what was read of many small files, so that a start reads one file in place of a thousand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from agentcli.settings.files import make_private_folder, replace_file

T = TypeVar("T")
Stamp = tuple[int, ...]

_FORM = "2"  # changes with what is kept


class Read(Struct, Generic[T], frozen=True, array_like=True):
    """What a file was when it had this stamp; without a value `problem` says why it cannot be used."""

    stamp: Stamp
    value: T | None
    problem: str = ""


def stamp_of(status: os.stat_result) -> Stamp:
    """What changes with a file, its contents included: a program can set the second of them to no time but now."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_once(
    files: Mapping[str, Stamp], kind: type[T], read: Callable[[str], T], cache: Path | None, place: Path
) -> tuple[dict[str, Read[T]], set[str]]:
    """What is in files, by their paths, and those that were read now, not taken from `cache`.

    `read` raises `OSError` or `ValueError` for a file that cannot be used. `place` names what is kept.
    """
    kept_in = cache / f"{sha256(os.fsencode(place)).hexdigest()[:16]}.json" if cache and files else None
    known = _known(kept_in, kind)
    now = {path: known[path] for path, stamp in files.items() if path in known and known[path].stamp == stamp}
    fresh = files.keys() - now.keys()
    if fresh:
        now |= {path: _read(path, files[path], read) for path in fresh}
        now = {path: now[path] for path in files}
    if kept_in is not None and (fresh or len(now) != len(known)):
        _keep(kept_in, now.items())
    return now, set(fresh)


def _read(path: str, stamp: Stamp, read: Callable[[str], T]) -> Read[T]:
    try:
        return Read(stamp, read(path))
    except OSError as error:
        return Read(stamp, None, error.strerror or str(error))
    except ValueError as error:
        return Read(stamp, None, str(error))


def _known(file: Path | None, kind: type[T]) -> dict[str, Read[T]]:
    with suppress(OSError, msgspec.MsgspecError):
        if file is not None:
            form, kept = msgspec.json.decode(file.read_bytes(), type=tuple[str, dict[str, Read[kind]]])  # type: ignore[valid-type]
            return kept if form == _FORM else {}
    return {}


def _keep(file: Path, read: Iterable[tuple[str, Read[T]]]) -> None:
    with suppress(OSError, UnicodeEncodeError):  # the next start reads them again
        make_private_folder(file.parent)
        replace_file(file, msgspec.json.encode((_FORM, dict(read))), syncs=False)
