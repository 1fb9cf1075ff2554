"""Reads the tables beside this module, and reads a program's arguments by a list of the options that only read.

The lists are in `only_reading.ini`. An option that is not in a program's list is a problem.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, Field


@functools.cache
def read_table(name: str) -> dict[str, dict[str, str]]:
    """Return the sections of a table by name, each with its rows by key."""
    sections: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_name(f"{name}.ini").read_text("utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            rows = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition(" = ")
            rows[key] = value
    return sections


@functools.cache
def listed_names(section: str, key: str) -> tuple[str, ...]:
    return tuple(read_table("names")[section][key].split())


class Options(Struct, frozen=True):
    """The options and operands with which a program only reads.

    `kinds` maps each option to what follows it: "" nothing, ":" a value, "@" a file it reads, "*" a glob of the files
    it reads, "?" an optional value in the same word. "!" marks an option that does more than read. `operands` is the
    kind of the other arguments: "content" (files it shows), "lines" (the same, but it shows nothing of a folder),
    "sizes" (files it only measures), "search" (a pattern, then files it shows), "names" (folders it lists), "facts"
    (paths it only describes), "text", or "none".

    `is_tolerant`: no option that the program has, or may get in the future, can write, run or send anything.
    """

    operands: str
    kinds: dict[str, str]
    is_tolerant: bool = False


@functools.cache
def parse_options(row: str) -> Options:
    """Read a row of a table: the kind of operands, perhaps `tolerant`, then options, each with its kind (`Options`).

    `search -in -m: --file@` has `-i` and `-n`, `-m` with a value, and `--file` with a file. `-#` is any number: `-5`.
    """
    operands, *words = row.split()
    kinds: dict[str, str] = {}
    for word in words:
        if word != "tolerant":
            name, kind = (word[:-1], word[-1]) if word[-1] in ":@*?!" else (word, "")
            option_names = [name] if name.startswith("--") else [f"-{letter}" for letter in name[1:]]
            kinds |= dict.fromkeys(option_names, kind)
    return Options(operands, kinds, "tolerant" in words)


def git_words(fields: Sequence[Field]) -> list[Field]:
    """Return the subcommand of git and the words after it, without the options before it."""
    remaining = list(fields[1:])
    while remaining and remaining[0].text.startswith("-"):
        remaining = remaining[2 if remaining[0].text in listed_names("git", "with_value") else 1 :]
    return remaining


class Arguments(Struct, kw_only=True):
    """The arguments of a call, sorted by their kinds."""

    operands: list[Field] = []
    files: list[Field] = []  # files to read that options name (kind "@")
    option_names: list[str] = []
    problem: str = ""  # why the arguments cannot be judged
    filters: list[Field] = []  # globs in options (kind "*")


def read_arguments(fields: Sequence[Field], known: Options, *, stops_at_operand: bool = False) -> Arguments:
    """Read options and operands. Options end at `--` or, with `stops_at_operand`, at the first operand."""
    read = Arguments()
    remaining = list(reversed(fields))  # so that pop() takes the next word
    while remaining and not read.problem:
        field = remaining.pop()
        if field.text.startswith("-") and field.text not in ("-", "--"):
            read_option = _read_long if field.text.startswith("--") else _read_short
            read_option(field, remaining, known, read)
            continue
        if field.text != "--":
            # A word whose beginning is not known may begin with a dash.
            may_be_option = field.text.startswith(UNKNOWN_TEXT) or (field.is_glob and field.text[:1] in ("*", "?", "["))
            if (may_be_option or field.may_vanish) and not known.is_tolerant and known.operands != "text":
                read.problem = "the shell may make an option of an argument"
            read.operands.append(field)
        if field.text == "--" or stops_at_operand:
            read.operands += reversed(remaining)
            break
    return read


def without_pattern(operands: list[Field]) -> list[Field]:
    """Return the files among the operands of a search: all operands if the pattern may become several words."""
    return operands if any(field.is_glob or field.may_vanish for field in operands[:1]) else operands[1:]


def _read_long(field: Field, remaining: list[Field], known: Options, read: Arguments) -> None:
    # `--name`, `--name=value` or `--name value`; for the kinds of options see `Options`.
    name, has_value, value = field.text.partition("=")
    kind = known.kinds.get(name)
    read.option_names.append(name)
    if kind in (None, "!") or (kind == "" and has_value):
        _note_doubtful_option(field.text, known, read)
    elif has_value:
        _note_option_value(kind, structs.replace(field, text=value), read)
    elif kind and kind != "?" and remaining:  # without a value the program complains and ends
        _note_option_value(kind, _value(remaining.pop()), read)


def _read_short(field: Field, remaining: list[Field], known: Options, read: Arguments) -> None:
    # One word has several options of one letter; the first that takes a value is the last: `-in5` is `-i -n 5`.
    # For the kinds of options see `Options`.
    text = field.text
    if "-#" in known.kinds and re.fullmatch(r"-\d+", text):
        return
    kind: str | None = ""
    for at in range(1, len(text)):
        name, value = f"-{text[at]}", text[at + 1 :]
        kind = known.kinds.get(name)
        read.option_names.append(name)
        if kind != "":
            break
    if kind in (None, "!"):
        _note_doubtful_option(text if kind is None else name, known, read)
    elif kind and (value or kind == "?"):
        for each in {value, value.removeprefix("=")}:  # ripgrep reads `-g=x` as `-g x`
            _note_option_value(kind, structs.replace(field, text=each), read)
    elif kind and remaining:
        _note_option_value(kind, _value(remaining.pop()), read)


def _value(word: Field) -> Field:
    return structs.replace(word, may_vanish=word.may_vanish or word.is_glob)  # a glob may become several words


def _note_option_value(kind: str | None, value: Field, read: Arguments) -> None:
    # Values that name neither a file nor a glob of files only matter if they may become several arguments.
    if value.may_vanish:
        read.problem = f"agentcli can't predict the value of {read.option_names[-1]}"
    elif kind == "@":
        read.files.append(value)
    elif kind == "*":
        read.filters.append(value)


def _note_doubtful_option(text: str, known: Options, read: Arguments) -> None:
    """Note an option that may do more than read. An unknown option of a tolerant program is harmless."""
    is_listed = any(  # it, or the option it abbreviates, does more than read or takes a value
        name == text or (text.startswith("--") and name.startswith(text))
        for name, kind in known.kinds.items()
        if kind in ("!", ":", "@", "*")
    )
    may_name_file = re.search(rf"[=./~{UNKNOWN_TEXT}]", text)
    if not known.is_tolerant or is_listed or may_name_file:
        read.problem = f"the option {text.partition('=')[0]} is not known to only read"


_TABLES = read_table("only_reading")


def _with_parts(row: str) -> str:
    # Replaces `<diff>` by the row `diff` of `[parts]`.
    for name in reversed(_TABLES["parts"]):  # reversed, because a part may contain parts that precede it
        row = row.replace(f"<{name}>", _TABLES["parts"][name])
    return row


# By program, and by subcommand of git: a row for `options`.
READING_PROGRAMS = {name: _with_parts(row) for names, row in _TABLES["programs"].items() for name in names.split()}
GIT_SUBCOMMANDS = {name: _with_parts(row) for name, row in _TABLES["git"].items()}
# By program: options that only print its version.
VERSION_OPTIONS = {name: row.split() for row, names in _TABLES["versions"].items() for name in names.split()}
