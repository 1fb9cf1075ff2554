"""Takes the wrappers off a simple command, layer by layer, and writes it in the forms that permission rules match."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct

from agentcli.safety.commands.arguments import names
from agentcli.safety.commands.reader.syntax import HERE, HOME, Field, State, name_of
from agentcli.safety.commands.reads import read_call
from agentcli.safety.commands.refused import catastrophe
from agentcli.safety.commands.wrappers import Layer, take_off


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


def _without_git_options(fields: Sequence[Field], *, strict: bool = True) -> list[Field] | None:
    """`git --no-pager log` as `git log`. `strict` drops only options that redirect nothing and run nothing."""
    if len(fields) < 3 or fields[0].text != "git" or not fields[1].text.startswith("-"):
        return None
    if strict:
        call = read_call(fields[1:])
        return [fields[0], *call.words] if call.words and not call.problem and not call.folders else None
    rest = list(fields[1:])
    while rest and rest[0].text.startswith("-"):
        rest = rest[2 if rest[0].text in names("git", "with_value") else 1 :]
    return [fields[0], *rest] if rest else None


_MOST_LAYERS = 12


class ProgramCall(Struct):
    """A command with all wrappers taken off.

    `layers` are the commands from the outermost to the innermost; the last one is what runs. If `script` is set, a
    shell runs that text. `candidates` are commands that may run besides, `doubtful_scripts` texts that may. `forms` are
    texts that refusing rules match. `reads_script`: a shell reads its commands from its input; `script_files` are the
    files it reads them from. `hides_program` is set if it cannot be told what runs, `unjudged` says why not all was
    looked at.
    """

    layers: list[tuple[Field, ...]]
    problem: str = ""
    catastrophe: str = ""
    forms: list[str] = []
    script: Layer | None = None
    candidates: list[tuple[Field, ...]] = []
    doubtful_scripts: list[str] = []
    sets: list[Field] = []
    reads_script: bool = False
    script_files: list[Field] = []
    hides_program: bool = False
    unjudged: str = ""

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.layers[-1]

    @property
    def name(self) -> str:
        return name_of(self.fields)


def unwrap(fields: Sequence[Field], state: State, depth: int = 0) -> ProgramCall:
    """Take off all wrappers. `fields` is not empty."""
    call = ProgramCall([tuple(fields)])
    for _ in range(_MOST_LAYERS):
        program = call.fields[0]
        call.catastrophe = call.catastrophe or catastrophe(call.fields, state)
        call.forms += deny_forms(call.fields)
        call.hides_program = call.hides_program or not program.is_known or program.is_glob
        if call.name == "parallel":
            call.hides_program = True
            for start in range(1, min(len(call.fields), _MOST_LAYERS)):
                call.forms += deny_forms(call.fields[start:])
        layer = take_off(call.fields)
        if layer is None:
            return call
        call.problem = call.problem or layer.problem
        call.sets += layer.sets
        call.script_files += layer.script_files
        call.reads_script = call.reads_script or layer.reads_script
        for candidate in layer.candidates:
            _note_candidate(candidate, call, state, depth)
        if layer.script is not None:
            call.script = layer
            return call
        if not layer.inner:
            call.hides_program = call.hides_program or layer.hides_program
            return call
        call.layers.append(layer.inner)
    call.unjudged = "it has too many wrappers"
    call.problem = call.problem or call.unjudged
    return call


def _note_candidate(fields: Sequence[Field], call: ProgramCall, state: State, depth: int) -> None:
    if depth > 3:
        call.unjudged = "it has too many wrappers"
        return
    inner = unwrap(fields, state, depth + 1)
    call.candidates += [*inner.layers, *inner.candidates]
    call.catastrophe = call.catastrophe or inner.catastrophe
    call.forms += inner.forms
    call.doubtful_scripts += inner.doubtful_scripts
    call.script_files += inner.script_files
    call.hides_program = call.hides_program or inner.hides_program
    call.unjudged = call.unjudged or inner.unjudged
    if inner.script is not None and inner.script.script:
        call.doubtful_scripts.append(inner.script.script)
