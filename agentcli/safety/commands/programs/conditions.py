"""Judges conditions (`test`, `[`): harmless if they only compare words and look at files of the workspace."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.syntax import Field

_OF_FILES = frozenset("-b -c -d -e -f -g -h -k -p -r -s -u -w -x -G -L -N -O -S".split())
_OF_TEXT = frozenset(("-n", "-z", "-t"))
_BETWEEN_TEXTS = frozenset("= == != < > -eq -ne -lt -le -gt -ge".split())
_JOINING = frozenset(("!", "(", ")", "-a", "-o"))


def condition_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """The reason why a condition may do more than look, as `-v` and `-R` may: a subscript can run a command."""
    if any(field.may_vanish or field.is_glob for field in fields):
        return "an unquoted expansion can turn into another test"
    rest = list(reversed(fields))
    while rest:
        field = rest.pop()
        if rest and rest[-1].text in _BETWEEN_TEXTS:
            del rest[-2:]
        elif field.text in _JOINING:
            continue
        elif field.text in _OF_FILES and rest:
            if why := check.problem([rest.pop()], "facts"):
                return why
        elif field.text in _OF_TEXT and rest:
            rest.pop()
        elif field.text.startswith("-") and rest:
            return f"the test {field.text} is not known to only look"
    return ""
