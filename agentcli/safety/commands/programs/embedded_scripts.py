"""Judges scripts for sed, awk and jq by the few shapes that only compute and print. All others may do anything."""

from __future__ import annotations

import re

_SED_TEXT = r"(?:[^\\\n\[\]{0}]|\\[^\n]|\[\^?[^\\\n\[\]{0}]+\])*"
_SED_ADDRESS = rf"(?:\d+|\$|/{_SED_TEXT.format('/')}/I?)"
_SED_REPLACE = "|".join(rf"s\{mark}{text}\{mark}{text}\{mark}" for mark in "/|#,:" for text in [_SED_TEXT.format(mark)])
_SED_COMMAND = rf"(?:{_SED_ADDRESS}(?:,\+?{_SED_ADDRESS})?)?!?(?:[pdqDNPnhHgGx=]|(?:{_SED_REPLACE})[gpiI0-9]*)"
_SED = rf"(?:{_SED_COMMAND})?(?:[ ;\n]+{_SED_COMMAND})*[ ;\n]*"


def sed_problem(script: str) -> str:
    """The reason why a sed script may do more than print: it is not `10,20p`, `/a/,/b/d`, `s/a/b/g` or several such."""
    return "" if re.fullmatch(_SED, script) else "what the sed script does is not known to be only printing"


# Names with which awk runs programs, reads other files or the environment, or loads code (gawk manual).
_AWK_FORBIDDEN = re.compile(
    r"\b(system|getline|ENVIRON|PROCINFO|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|extension|include|load|namespace)\b|@"
)
_AWK_WRITES = re.compile(r"(?<!\|)\|(?!\|)|print.*>", re.DOTALL)


def awk_problem(program: str) -> str:
    """The reason why an awk program may do more than compute and print: a pipe, or a `>` behind a `print`."""
    if found := _AWK_FORBIDDEN.search(program):
        return f"awk can do more than print with {found[0]}"
    return "the awk program may write or run something" if _AWK_WRITES.search(program) else ""


_JQ_FORBIDDEN = re.compile(
    r"(?<![.\w])(env|ENV|__prog_args|input_filename|import|include|modulemeta|get_search_list)\b"
)


def jq_problem(program: str) -> str:
    """The reason why a jq program may do more than compute: `env` shows the environment, `import` reads other files."""
    found = _JQ_FORBIDDEN.search(program)
    return f"jq can do more than compute with {found[0]}, such as show the environment" if found else ""
