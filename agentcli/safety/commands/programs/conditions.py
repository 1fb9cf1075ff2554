"""Judges conditions (`test`, `[`, `[[`): harmless if they only compare words and look at files of the workspace."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.expansion import Field

_OF_FILES = frozenset("-a -b -c -d -e -f -g -h -k -p -r -s -u -w -x -G -L -N -O -S".split())
_OF_TEXT = frozenset(("-n", "-z", "-t"))
_BETWEEN_FILES = frozenset(("-nt", "-ot", "-ef"))
_BETWEEN_TEXTS = frozenset(("=", "==", "!=", "<", ">", "=~"))
_BETWEEN_NUMBERS = frozenset("-eq -ne -lt -le -gt -ge".split())
_JOINING = frozenset(("!", "(", ")", "&&", "||"))


def condition_problem(fields: Sequence[Field], check: ReadCheck, *, is_double: bool) -> str:
    """The reason why a condition may do more than look. `is_double`: for `[[`, which evaluates numbers as expressions.

    A subscript in such an expression can run a command: `[[ -v 'a[$(id)]' ]]`. So `-v`, `-R` and `-o` are not accepted,
    and the numbers of `[[` must be literal.
    """
    rest = list(reversed(fields))
    if any(field.may_vanish for field in fields) and not is_double:
        return "an unquoted expansion can turn into another test"
    while rest:
        field = rest.pop()
        follower = rest[-1].text if rest else ""
        if follower in _BETWEEN_TEXTS or follower in _BETWEEN_NUMBERS or follower in _BETWEEN_FILES:
            operator, right = rest.pop().text, rest.pop() if rest else Field("")
            if why := _between(field, operator, right, check, is_double=is_double):
                return why
        elif field.text in _JOINING or (field.text in ("-a", "-o") and not is_double and rest):
            continue
        elif field.text in _OF_FILES and rest:
            if why := check.problem([rest.pop()], "facts"):
                return why
        elif field.text in _OF_TEXT and rest:
            rest.pop()
        elif not field.is_known or not field.text.startswith("-") or not rest:
            continue  # a single word: true unless it is empty
        else:
            return f"the test {field.text} is not known to only look"
    return ""


def _between(left: Field, operator: str, right: Field, check: ReadCheck, *, is_double: bool) -> str:
    if operator in _BETWEEN_FILES:
        return check.problem([left, right], "facts")
    if operator in _BETWEEN_NUMBERS and is_double:
        for side in (left, right):
            if not re.fullmatch(r"-?\d+", side.text):
                return "a number in [[ ]] is evaluated as an expression"
    return ""
