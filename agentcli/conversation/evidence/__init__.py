"""Checks the claims of a final message against the log: exit codes, summaries in outputs, changes to files.

`claims` finds claims in a message, `verdicts` compares them with the log. Neither runs a command or asks a model. They
are imported only when an answer may claim something.
"""

from typing import Literal

from msgspec import Struct

ClaimVerdict = Literal["verified", "refuted", "unverified"]


class Claim(Struct, frozen=True):
    """A claim of a final message, quoted in `text`. `entries` are the ids of entries that support or refute it.

    docs/evidence.md lists the values of `kind`. `subject` is the file or command that the claim names, if any.
    """

    text: str
    kind: str
    verdict: ClaimVerdict
    entries: tuple[str, ...] = ()
    subject: str = ""


class UncheckedClaim(Struct, frozen=True, kw_only=True):
    """A claim of a final message, before it is compared with the log."""

    kind: str
    text: str
    start: int  # its position in the sentence
    target: str = ""  # the command or the file
    count: int | None = None  # the number of tests that pass or fail, or the exit code of a command
    out_of: int | None = None  # the number of all tests: 14 in `12 of 14`
    names: tuple[str, ...] = ()  # the tests and files it is about
    is_all: bool = False  # it is about every test

    @property
    def topic(self) -> str:
        return self.kind.partition("_")[0]

    @property
    def is_good(self) -> bool:
        return self.kind.endswith(("pass", "passes", "passed", "clean"))
