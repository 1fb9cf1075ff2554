"""Checks what a final message claims against the log: exit codes, summaries of outputs, changes of files.

`claims` finds claims in a message, `verdicts` compares them with the log. Nothing here runs a command or asks a model.
Both are imported only when an answer may claim something.
"""

from typing import Literal

from msgspec import Struct

ClaimVerdict = Literal["verified", "refuted", "unverified"]


class Claim(Struct, frozen=True):
    """A claim of a final message, in its words. `entries` has the ids of the log's entries that support or refute it.

    docs/evidence.md lists the values of `kind`. `subject` is the file or the command that it names, if any.
    """

    text: str
    kind: str
    verdict: ClaimVerdict
    entries: tuple[str, ...] = ()
    subject: str = ""


class Statement(Struct, frozen=True, kw_only=True):
    """A claim that can be checked. It begins at `start` of its sentence."""

    kind: str
    text: str
    start: int
    target: str = ""  # the command or the file
    count: int | None = None  # of tests that pass or fail; the exit code of a command
    out_of: int | None = None
    names: tuple[str, ...] = ()  # the tests and files it is about
    is_all: bool = False  # it is about every test

    @property
    def topic(self) -> str:
        return self.kind.partition("_")[0]

    @property
    def is_good(self) -> bool:
        return self.kind.endswith(("pass", "passes", "passed", "clean"))
