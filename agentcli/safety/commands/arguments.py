"""Reads the tables beside this module, and checks a program's arguments against a list of read-only options.

The lists are in `only_reading.ini`. An option that is not in a program's list is a problem.
"""

import functools
import re
from collections import deque
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
    """Return the words of a row in names.ini."""
    return tuple(read_table("names")[section][key].split())


_VALUE, _FILE, _GLOB, _OPTIONAL_VALUE, _DOES_MORE = ":", "@", "*", "?", "!"  # kinds of options, see `Options`


class Options(Struct, frozen=True):
    """The options and operands with which a program only reads.

    `kinds` maps each option to what follows it: "" nothing, ":" a value, "@" a file it reads, "*" a glob of the files
    it reads, "?" an optional value in the same word. "!" marks an option that does more than read. `shows` says what
    the program shows of its operands: "content" (of files), "lines" (the same, but nothing of a folder), "sizes" (of
    files), "search" (after a pattern: lines of files), "names" (of files in folders), "facts" (about paths), "text"
    (the operands themselves, which are no paths), or "none" (there may be no operands).

    `is_tolerant`: no option that the program has, or may get in the future, can write, run or send anything.
    """

    shows: str
    kinds: dict[str, str]
    is_tolerant: bool = False


@functools.cache
def _parse_options(row: str) -> Options:
    """Read a row of a table: what is shown, perhaps `tolerant`, then options, each with its kind (`Options`).

    `search -in -m: --file@` has `-i` and `-n`, `-m` with a value, and `--file` with a file. `-#` is any number: `-5`.
    """
    shows, *words = row.split()
    kinds: dict[str, str] = {}
    for word in words:
        if word != "tolerant":
            name, kind = (word[:-1], word[-1]) if word[-1] in ":@*?!" else (word, "")
            option_names = [name] if name.startswith("--") else [f"-{letter}" for letter in name[1:]]
            kinds |= dict.fromkeys(option_names, kind)
    return Options(shows, kinds, "tolerant" in words)


def git_words(fields: Sequence[Field]) -> list[Field]:
    """Return the subcommand of git and the words after it, without the options before it."""
    remaining = list(fields[1:])
    while remaining and remaining[0].text.startswith("-"):
        remaining = remaining[2 if remaining[0].text in listed_names("git", "with_value") else 1 :]
    return remaining


class Arguments(Struct, kw_only=True):
    """The arguments of a call, sorted by their kinds."""

    shows: str  # what the program shows of its operands (`Options`)
    operands: list[Field] = []
    files: list[Field] = []  # files to read that options name
    option_names: list[str] = []
    problem: str = ""  # why the arguments cannot be judged
    filters: list[Field] = []  # globs in options, of the files to read


def read_arguments(fields: Sequence[Field], row: str, *, stops_at_operand: bool = False) -> Arguments:
    """Read options and operands by a row of a table. Options end at `--` or, if asked, at the first operand."""
    known = _parse_options(row)
    read = Arguments(shows=known.shows)
    remaining = deque(fields)
    while remaining and not read.problem:
        field = remaining.popleft()
        if field.text.startswith("-") and field.text not in ("-", "--"):
            read_option = _read_long if field.text.startswith("--") else _read_short
            read_option(field, remaining, known, read)
            continue
        if field.text != "--":
            # The shell may put a dash at its beginning: `*` also finds files that are named like options.
            starts_like_option = (UNKNOWN_TEXT, "*", "?", "[") if field.is_glob else UNKNOWN_TEXT
            may_be_option = field.may_vanish or field.text.startswith(starts_like_option)
            if may_be_option and not known.is_tolerant and known.shows != "text":
                read.problem = "the shell may make an option of an argument"
            read.operands.append(field)
        if field.text == "--" or stops_at_operand:
            read.operands += remaining
            break
    return read


def _read_long(field: Field, remaining: deque[Field], known: Options, read: Arguments) -> None:
    """Read an option `--name`, `--name=value` or `--name value` into `read`."""
    name, has_value, value = field.text.partition("=")
    kind = known.kinds.get(name)
    read.option_names.append(name)
    has_extra_value = kind == "" and has_value
    if kind in (None, _DOES_MORE) or has_extra_value:
        _note_doubtful_option(field.text, known, read)
    elif has_value:
        _note_option_value(kind, structs.replace(field, text=value), read)
    elif kind in (_VALUE, _FILE, _GLOB) and remaining:  # without a value the program complains and ends
        _note_option_value(kind, _as_value(remaining.popleft()), read)


def _read_short(field: Field, remaining: deque[Field], known: Options, read: Arguments) -> None:
    """Read a word with options of one letter into `read`, with the value of its last option.

    The first option that takes a value is the last one of the word: `-in5` is `-i -n 5`.
    """
    text = field.text
    if "-#" in known.kinds and re.fullmatch(r"-\d+", text):  # such as `head -20`
        return
    kind: str | None = ""
    for at in range(1, len(text)):
        name, value = f"-{text[at]}", text[at + 1 :]
        kind = known.kinds.get(name)
        read.option_names.append(name)
        if kind != "":  # it takes a value, does more than read, or is not known
            break
    if kind is None:  # not known, so the whole word may be one long option
        _note_doubtful_option(text, known, read)
    elif kind == _DOES_MORE:
        _note_doubtful_option(name, known, read)
    elif kind and (value or kind == _OPTIONAL_VALUE):
        for each in {value, value.removeprefix("=")}:  # ripgrep reads `-g=x` as `-g x`, so both are checked
            _note_option_value(kind, structs.replace(field, text=each), read)
    elif kind and remaining:
        _note_option_value(kind, _as_value(remaining.popleft()), read)


def _as_value(word: Field) -> Field:
    return structs.replace(word, may_vanish=word.may_vanish or word.is_glob)  # a glob may become several words


def _note_option_value(kind: str | None, value: Field, read: Arguments) -> None:
    if value.may_vanish:  # the words after the first one would be arguments of their own
        read.problem = f"agentcli can't predict the value of {read.option_names[-1]}"
    elif kind == _FILE:
        read.files.append(value)
    elif kind == _GLOB:
        read.filters.append(value)


def _note_doubtful_option(text: str, known: Options, read: Arguments) -> None:
    """Note an option that may do more than read. An unknown option of a tolerant program is harmless."""
    # In the table are options that do more than read, or take the next word; a long one may be abbreviated.
    is_listed = any(
        name == text or (text.startswith("--") and name.startswith(text))
        for name, kind in known.kinds.items()
        if kind in (_DOES_MORE, _VALUE, _FILE, _GLOB)
    )
    may_name_file = re.search(rf"[=./~{UNKNOWN_TEXT}]", text)
    if not known.is_tolerant or is_listed or may_name_file:
        read.problem = f"the option {text.partition('=')[0]} is not known to only read"


_TABLES = read_table("only_reading")


def _with_parts(row: str) -> str:
    """Replace `<diff>` by the row `diff` of `[parts]`."""
    for name in reversed(_TABLES["parts"]):  # reversed, because a part may contain parts that precede it
        row = row.replace(f"<{name}>", _TABLES["parts"][name])
    return row


# By program, and by subcommand of git: a row for `read_arguments`.
READERS = {name: _with_parts(row) for names, row in _TABLES["programs"].items() for name in names.split()}
GIT_SUBCOMMANDS = {name: _with_parts(row) for name, row in _TABLES["git"].items()}
# By program: options that only print its version.
VERSION_OPTIONS = {name: row.split() for row, names in _TABLES["versions"].items() for name in names.split()}
