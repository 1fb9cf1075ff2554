"""How much of a workspace checkpoints cover."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What checkpoints cover: files of `largest` bytes and fewer, `most_files` and `most_bytes` in all.

    Of what git ignores no more than `ignored_files` and `ignored_bytes` together. `excluded` are globs of names, or of
    paths relative to the folder; `own` are folders of agentcli itself.
    """

    largest: int = 50_000_000
    most_files: int = 200_000
    most_bytes: int = 5_000_000_000
    ignored_files: int = 5_000
    ignored_bytes: int = 50_000_000
    excluded: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class TooManyFiles(Exception):  # it says what is so
    """A folder holds more than checkpoints cover."""
