"""Tells which files a read-only command may show the contents of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentcli.safety.commands.programs.git import read_call
from agentcli.safety.commands.reader.syntax import Field

_NAMES_ONLY = frozenset(
    "[ basename cd date df dirname du echo false id ls printf pwd realpath stat test tree true type uname which whoami"
    .split()
)  # fmt: skip
_FILTERS = frozenset(
    "awk cat column cut egrep fgrep fold grep head jq nl od paste rev sed sort tac tail tee tr uniq wc xxd".split()
)
# Options with a value count too: one question too many is safe.
_GREPS_FOLDERS = re.compile(r"-[^-]*[rRd]|--[rd]")
_GIT_NAMES_ONLY = frozenset(
    "branch check-ignore count-objects describe for-each-ref ls-files ls-tree merge-base name-rev remote rev-list "
    "rev-parse shortlog show-ref symbolic-ref tag version".split()
)
_GIT_SUMS_UP = re.compile(r"--(stat|shortstat|numstat|dirstat|name-only|name-status)(=|$)")
_GIT_SHOWS_MORE = re.compile(
    r"-[pucmWUL]|--(patch|unified|cc|word-diff|color-words|binary|function-context|diff-merges|remerge-diff|submodule=)"
)


def shows_names_only(words: Sequence[str]) -> bool:
    """True for commands that show only names of files, facts about them, or commits."""
    return words[0] in _NAMES_ONLY or (words[0] == "git" and _git_shows_names_only(words[1:]))


def names_what_it_reads(words: Sequence[str]) -> bool:
    """False if the operands are not all paths, or not all that is read: git's may be revisions and patterns."""
    if words[0] != "git":
        return True
    called = [field.text for field in read_call([Field(word) for word in words[1:]]).words]
    paths = called[called.index("--") + 1 :] if "--" in called else []
    is_one_file = called[:1] in (["blame"], ["annotate"])
    return is_one_file or (bool(paths) and not any(path.startswith(":") for path in paths))


def filters_input(words: Sequence[str]) -> bool:
    """True for a program that reads only its standard input unless it is given a path."""
    is_grep = words[0].endswith("grep")
    return words[0] in _FILTERS and not (is_grep and any(_GREPS_FOLDERS.match(word) for word in words[1:]))


def _git_shows_names_only(words: Sequence[str]) -> bool:
    called = [field.text for field in read_call([Field(word) for word in words]).words]
    match called:
        case ["status", *rest]:
            return not any(re.match(r"-[^-]*v|--v", word) for word in rest)
        case ["diff" | "show", *rest] if not any(_GIT_SUMS_UP.match(word) for word in rest):
            return False
        case ["log" | "diff" | "show", *rest]:
            return not any(_GIT_SHOWS_MORE.match(word) for word in rest)
    return bool(called) and called[0] in _GIT_NAMES_ONLY
