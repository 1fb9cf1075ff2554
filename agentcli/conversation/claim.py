"""Defines a claim of a final message, with what the log says of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ClaimVerdict = Literal["verified", "refuted", "unverified"]


class Claim(Struct, frozen=True):
    """A claim of a final message, in its words. `entries` are ids of the log's entries that speak for or against it.

    `kind` is one of `tests_pass`, `tests_fail`, `lint_clean`, `lint_fails`, `types_clean`, `types_fail`,
    `format_clean`, `format_fails`, `build_passes`, `build_fails`, `checks_pass`, `checks_fail`, `command_passed`,
    `command_failed`, `command_ran`, `file_created`, `file_changed`, `file_deleted`, `file_unchanged`, or `unchecked`.
    """

    text: str
    kind: str
    verdict: ClaimVerdict
    entries: tuple[str, ...] = ()
