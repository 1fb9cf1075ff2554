"""Writes a simple command in the forms that permission rules are matched against."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from agentcli.safety.commands.programs.git import read_call
from agentcli.safety.commands.reader.syntax import HERE, HOME, Field


def canonical(fields: Sequence[Field]) -> str:
    """The words joined by blanks, quoted if they contain one: `'git log' x` is not `git log x`."""
    return " ".join(_typed(field) for field in fields)


def _typed(field: Field) -> str:
    return field.text if field.text and not re.search(r"\s", field.text) else shlex.quote(field.text)


def allow_forms(layers: Iterable[Sequence[Field]]) -> tuple[str, ...]:
    """The forms a granting rule may match: the words, and those left when each harmless wrapper is taken off."""
    forms = []
    for fields in layers:
        forms.append(canonical(fields))
        if (bare := _without_git_options(fields)) is not None:
            forms.append(canonical(bare))
    return tuple(dict.fromkeys(forms))


def with_assignments(assignments: Sequence[tuple[str, Field]], fields: Sequence[Field]) -> tuple[str, ...]:
    """`NODE_ENV=test npm test`: if a variable matters, a granting rule must name it too."""
    if not all(value.is_known and HOME not in value.text and HERE not in value.text for _, value in assignments):
        return ()
    words = [f"{name}={value.text}" for name, value in assignments]
    return tuple(" ".join((*words, form)) for form in allow_forms([fields])) if words else ()


def deny_forms(fields: Sequence[Field]) -> tuple[str, ...]:
    """The forms a refusing rule may match: also unquoted, with the bare program name, and without options of git."""
    plain = " ".join(field.text for field in fields)
    forms = [canonical(fields), plain]
    if fields:
        name = fields[0].text.rpartition("/")[2]
        rest = plain[len(fields[0].text) :]
        forms += [name + rest, name.lower() + rest]
        if name.lower() == "git" and (bare := _without_git_options([Field("git"), *fields[1:]], strict=False)):
            forms.append(" ".join(field.text for field in bare))
    return tuple(dict.fromkeys(form for form in forms if form))


_GIT_VALUES = frozenset("-C -c --git-dir --work-tree --namespace --config-env --super-prefix".split())


def _without_git_options(fields: Sequence[Field], *, strict: bool = True) -> list[Field] | None:
    """`git --no-pager log` as `git log`. `strict` drops only options that redirect nothing and run nothing."""
    if len(fields) < 3 or fields[0].text != "git" or not fields[1].text.startswith("-"):
        return None
    if strict:
        call = read_call(fields[1:])
        return [fields[0], *call.words] if call.words and not call.problem and not call.folders else None
    rest = list(fields[1:])
    while rest and rest[0].text.startswith("-"):
        rest = rest[2 if rest[0].text in _GIT_VALUES else 1 :]
    return [fields[0], *rest] if rest else None
