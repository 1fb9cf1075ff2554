"""Versions as https://semver.org/spec/v2.0.0.html has them: 1.4.0, 2.0.0-rc.1, 2.0.0+build.5."""

import re
from functools import total_ordering

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?")


@total_ordering
class Version:
    """A version; raises ValueError for a text that is none, also for numbers with a leading zero (1.02.0).

    Ordered by the specification: numbers as numbers; a pre-release (1.0.0-rc.1) comes before its release; its parts are
    compared one by one, numbers as numbers and before words, and of two that begin alike the longer one comes later.
    What follows a "+" does not count, neither for the order nor for equality. Equal versions have one hash.
    """

    def __init__(self, text: str) -> None:
        match = _VERSION.match(text)
        if match is None:
            raise ValueError(f"{text!r} is no version")
        self.text = text
        self.numbers = (match[1], match[2], match[3])
        self.pre = tuple((match[4] or "").split("."))

    def __repr__(self) -> str:
        return f"Version({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.text == other.text

    def __lt__(self, other: "Version") -> bool:
        return (self.numbers, self.pre) < (other.numbers, other.pre)

    def __hash__(self) -> int:
        return hash(self.text)


def fits(version: str, wanted: str) -> bool:
    """True if a version is one that is wanted: "^1.2.3", "~1.2.3", ">=1.2.3", "<2.0.0" or "1.2.3"; several with blanks
    between them must all hold.

    ^ allows what changes nothing left of the first number that is not zero (^1.2.3 allows 1.9.0, ^0.2.3 allows 0.2.9
    but not 0.3.0, ^0.0.3 only 0.0.3), ~ allows a higher last number; neither allows a version below the one that is
    named, nor a pre-release unless of the very numbers that are named with a pre-release (^1.2.3-rc.1 allows 1.2.3-rc.2
    and 1.2.3, not 1.3.0-rc.1).
    """
    one = Version(version)
    for part in wanted.split():
        if part.startswith("^"):
            least = Version(part[1:])
            if one < least or one.numbers[0] != least.numbers[0]:
                return False
        elif part.startswith("~"):
            least = Version(part[1:])
            if one < least or one.numbers[:2] != least.numbers[:2]:
                return False
        elif part.startswith(">="):
            if one < Version(part[2:]):
                return False
        elif part.startswith("<"):
            if one > Version(part[1:]):
                return False
        elif one != Version(part):
            return False
    return True
