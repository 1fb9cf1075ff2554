"""Finds the files that the words of a command name and that no wide grant may open, whatever it does with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from agentcli.safety.commands.judge.calls import name_of
from agentcli.safety.commands.programs.effects import names_its_paths
from agentcli.safety.commands.reader.syntax import Field, State, normal
from agentcli.safety.paths.protected import is_protected
from agentcli.safety.paths.secret import is_secret

_INTERPRETERS = frozenset("python python2 python3 node nodejs ruby perl php lua sh bash zsh dash".split())
# Subcommands of git that do not write the files which they name.
_GIT_READS = frozenset(
    "add annotate blame branch cat-file check-attr check-ignore commit describe diff fetch grep log ls-files ls-remote"
    " ls-tree push rev-list rev-parse shortlog show stage status tag".split()
)
# Settings of git that neither start programs nor name further files with settings.
_PLAIN_SETTING = re.compile(
    r"(?:user|author|committer|color|column|branch|pull|push|rebase|status|log|advice|tag|rerere|fetch)\..*"
    r"|init\.defaultbranch|commit\.(?:gpgsign|verbose|status|cleanup)|merge\.(?:conflictstyle|ff|autostash)"
    r"|core\.(?:autocrlf|eol|safecrlf|filemode|ignorecase|quotepath|longpaths|precomposeunicode|symlinks|abbrev)",
    re.IGNORECASE,
)
# What reads only: the options of `git config`, and its subcommands.
_READS_SETTINGS = re.compile(r"--?(?:get|list|l$|unset|remove|show).*|get|list|unset|remove-section")
_SETTING = re.compile(r"[A-Za-z][\w-]*\..*[A-Za-z][\w-]*")
_LEFT_OUT = re.compile(r"--(?:exclude(?:-dir|-from)?|ignore)=|:[!^]|:\([\w,]*exclude")
_LEAVES_OUT = re.compile(r"--(?:exclude(?:-dir|-from)?|ignore)")
# Behind which a word may go on with a path: `--output=x`, `-d@x`, `-F f=<x`, `-ox`, `-sTx`.
_BEHIND = tuple(
    re.compile(each, re.DOTALL) for each in (r"[^=]*=(.+)", r"[^@<]*[@<](.+)", r"-\w(.+)", r"-\w+([./~].*)")
)


def opened_files(seen: Sequence[Sequence[Field]], state: State) -> tuple[str, ...]:
    """The files with secrets that words name, also as a part of an option, and the auto-executed ones.

    A program that tells what it writes is taken at its word, and what an interpreter runs is not written.
    """
    home = PurePath(state.home) if state.home is not None else None
    found: list[str] = []
    for fields in seen:
        may_write = not names_its_paths(name_of(fields)) and not _reads_with_git(fields)
        for path in (path for part in _parts_of(fields) for path in state.paths(part) or state.likely_paths(part)):
            if is_secret(PurePath(path), home) or (may_write and is_protected(PurePath(path))):
                found.append(normal(path))
        if _sets_program_of_git(fields):
            found += map(normal, state.paths(Field(".git/config")))
    return tuple(dict.fromkeys(found))


def _parts_of(fields: Sequence[Field]) -> Iterator[Field]:
    is_script = name_of(fields) in _INTERPRETERS and len(fields) > 1 and not fields[1].text.startswith("-")
    for before, field in itertools.pairwise(fields[1:] if is_script else fields):
        if _LEFT_OUT.match(field.text) or _LEAVES_OUT.fullmatch(before.text):
            continue
        texts = [field.text, *(found[1] for each in _BEHIND if (found := each.fullmatch(field.text)))]
        yield from (Field(text, field.is_glob, field.may_vanish) for text in texts)


def _reads_with_git(fields: Sequence[Field]) -> bool:
    words = _git_words(fields)
    return bool(words) and words[0] in _GIT_READS


def _sets_program_of_git(fields: Sequence[Field]) -> bool:
    words = _git_words(fields)
    telling = [*words[1:2], *(word for word in words if word.startswith("-"))]
    if words[:1] != ["config"] or any(_READS_SETTINGS.fullmatch(word) for word in telling):
        return False
    names = [at for at, word in enumerate(words) if _SETTING.fullmatch(word)][:1]
    return any(len(words) > at + 1 and not _PLAIN_SETTING.fullmatch(words[at]) for at in names)


def _git_words(fields: Sequence[Field]) -> list[str]:
    """The subcommand of git and what follows it; empty for other programs."""
    if name_of(fields) != "git":
        return []
    words = [field.text for field in fields[1:]]
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in ("-C", "-c") else 1 :]
    return words
