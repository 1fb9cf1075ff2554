"""Takes the wrappers off a simple command, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec import field as struct_field

from agentcli.safety.commands.judge.catastrophe import catastrophe
from agentcli.safety.commands.judge.forms import deny_forms
from agentcli.safety.commands.programs.wrappers import Layer, take_off
from agentcli.safety.commands.reader.syntax import Field, State

_MOST_LAYERS = 12


class Call(Struct):
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
    forms: list[str] = struct_field(default_factory=list)
    script: Layer | None = None
    candidates: list[tuple[Field, ...]] = struct_field(default_factory=list)
    doubtful_scripts: list[str] = struct_field(default_factory=list)
    sets: list[Field] = struct_field(default_factory=list)
    reads_script: bool = False
    script_files: list[Field] = struct_field(default_factory=list)
    hides_program: bool = False
    unjudged: str = ""

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.layers[-1]

    @property
    def name(self) -> str:
        """The name of the program without its folder; empty if it cannot be told."""
        return name_of(self.fields)


def name_of(fields: Sequence[Field]) -> str:
    """The name of a program without its folder; empty if it cannot be told."""
    return fields[0].text.rpartition("/")[2] if fields and fields[0].is_known else ""


def unwrap(fields: Sequence[Field], state: State, depth: int = 0) -> Call:
    """Take off all wrappers. `fields` is not empty."""
    call = Call([tuple(fields)])
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


def _note_candidate(fields: Sequence[Field], call: Call, state: State, depth: int) -> None:
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
