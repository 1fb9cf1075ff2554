"""One edit of a text, as a model asks for it."""

from __future__ import annotations

from msgspec import Struct


class Edit(Struct, frozen=True):
    """`old_string` becomes `new_string`; in more than one place only with `replace_all`."""

    old_string: str
    new_string: str
    replace_all: bool = False
