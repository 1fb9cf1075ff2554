"""Edits text: finding the place, applying, diffs, encodings, line ends. It knows no permissions and no locks."""

from __future__ import annotations

from msgspec import Struct


class Edit(Struct, frozen=True):
    """`old_string` becomes `new_string`; in more than one place only with `replace_all`."""

    old_string: str
    new_string: str
    replace_all: bool = False
