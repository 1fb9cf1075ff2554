"""Checks what a final message claims against the log: exit codes, summaries of outputs, changes of files.

`claims` finds what is claimed, `runs` reads commands and their outputs, `verdicts` holds the one against the other.
Nothing here runs a command or asks a model; all of it is imported only when a turn has ended.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ClaimVerdict = Literal["verified", "refuted", "unverified"]


class Claim(Struct, frozen=True):
    """A claim of a final message, in its words. `entries` are ids of the log's entries that speak for or against it.

    `kind` is one of `tests_pass`, `tests_fail`, `lint_clean`, `lint_fails`, `types_clean`, `types_fail`,
    `format_clean`, `format_fails`, `build_passes`, `build_fails`, `checks_pass`, `checks_fail`, `command_passed`,
    `command_failed`, `command_ran`, `file_created`, `file_changed`, `file_deleted`, `file_unchanged`.
    """

    text: str
    kind: str
    verdict: ClaimVerdict
    entries: tuple[str, ...] = ()
