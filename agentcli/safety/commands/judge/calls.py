"""Takes the wrappers off a simple command, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec import field as struct_field

from agentcli.safety.commands.judge.catastrophe import catastrophe
from agentcli.safety.commands.judge.forms import deny_forms
from agentcli.safety.commands.programs.wrappers import STANDARD_INPUT, Layer, take_off
from agentcli.safety.commands.reader.expansion import HOLE, MAYBE, PROCESS, Field, State

_MOST_LAYERS = 12


class Call(Struct):
    """A command with all wrappers taken off.

    `layers` are the commands from the outermost to the innermost; the last one is what runs. If `script` is set, a
    shell runs that text. `doubtful_scripts` are texts that may run, if the options of a wrapper cannot be read. `forms`
    are texts that refusing rules match. `script_files` are the files that shells read their scripts from.
    `hides_program` is set if it cannot be told what runs.
    """

    layers: list[tuple[Field, ...]]
    problem: str = ""
    catastrophe: str = ""
    forms: list[str] = struct_field(default_factory=list)
    script: Layer | None = None
    doubtful_scripts: list[str] = struct_field(default_factory=list)
    sets: list[Field] = struct_field(default_factory=list)
    is_bare_shell: bool = False
    script_files: list[Field] = struct_field(default_factory=list)
    hides_program: bool = False

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.layers[-1]

    @property
    def name(self) -> str:
        """The name of the program without its folder; empty if it cannot be told."""
        return self.fields[0].text.rpartition("/")[2] if self.fields[0].is_known else ""


def unwrap(fields: Sequence[Field], state: State, depth: int = 0) -> Call:
    """Take off all wrappers. `fields` is not empty."""
    call = Call([tuple(fields)])
    for _ in range(_MOST_LAYERS):
        _note(call, state, depth)
        layer = take_off(call.fields)
        if layer is None:
            return call
        call.problem = call.problem or layer.problem
        call.sets += layer.sets
        call.script_files += layer.script_files
        is_seen = layer.inner or layer.candidates or layer.script_files or layer.script is not None
        if not is_seen and not all(field.is_known for field in call.fields):
            call.doubtful_scripts.append(" ".join(each.text for each in call.fields[1:] if each.text[:1] != "-"))
        for candidate in layer.candidates:
            _note_candidate(candidate, call, state, depth)
        if layer.script is not None:
            call.script = layer
            return call
        if not layer.inner:
            call.is_bare_shell = layer.is_shell
            return call
        call.layers.append(layer.inner)
    call.problem = call.problem or "it has too many wrappers"
    return call


def _note(call: Call, state: State, depth: int) -> None:
    fields = call.fields
    call.catastrophe = call.catastrophe or catastrophe(fields, state)
    call.forms += deny_forms(fields)
    if any(MAYBE in field.text for field in fields):
        _note_candidate([_taken_as_it_may_be(field) for field in fields], call, state, depth)
    if not fields[0].is_known:
        for candidate in _candidates(fields[0], fields[1:]):
            _note_candidate(candidate, call, state, depth)
    if not fields[0].is_known or fields[0].is_glob or fields[0].may_vanish:
        call.hides_program = True
    if call.name in (".", "source", "make"):
        call.script_files += [field for field in fields[1:] if call.name != "make" or is_input(field)]
    if call.name == "parallel":
        call.script_files.append(STANDARD_INPUT)
        for start in range(1, min(len(fields), _MOST_LAYERS)):
            call.forms += deny_forms(fields[start:])


def _candidates(program: Field, arguments: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    """The commands that may run if the program cannot be told: `$SHELL -c text`, `$sudo rm -rf /`, `$bin/rm -rf /`."""
    _, slash, name = program.text.rpartition("/")
    if slash and Field(name).is_known:
        yield Field(name), *arguments
    if not program.text.strip(HOLE):
        yield Field("sh"), *arguments
    if arguments and (program.may_vanish or not program.text.strip(HOLE)):
        yield arguments


def _taken_as_it_may_be(field: Field) -> Field:
    text = field.text.replace(MAYBE, "")
    return Field(text, field.is_glob, field.may_vanish and text != "", field.shows_secret)


def _note_candidate(fields: Sequence[Field], call: Call, state: State, depth: int) -> None:
    if depth > 3:
        return
    inner = unwrap(fields, state, depth + 1)
    call.catastrophe = call.catastrophe or inner.catastrophe
    call.forms += inner.forms
    call.doubtful_scripts += inner.doubtful_scripts
    call.script_files += inner.script_files
    call.hides_program = call.hides_program or inner.hides_program
    if inner.script is not None and inner.script.script:
        call.doubtful_scripts.append(inner.script.script)


def is_input(file: Field) -> bool:
    """True for a file that stands for the command's input, on any descriptor."""
    return PROCESS in file.text or file.text == "-" or file.text.startswith(("/dev/", "/proc/"))
