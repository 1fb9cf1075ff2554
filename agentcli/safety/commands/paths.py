"""Decides if a program may look at a path, recognizes paths whose loss ruins the system, and finds what is reached.

A command may reach other hosts, paths outside the workspace, secret files and auto-executed files.
"""

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from msgspec.structs import replace

from agentcli.safety.commands.arguments import git_words, names
from agentcli.safety.commands.effects import beyond_workspace, names_its_paths
from agentcli.safety.commands.reader.syntax import HOLE, Field, State, name_of, normal
from agentcli.safety.commands.records import UNKNOWN, Effects, Places
from agentcli.safety.paths.judge import is_auto_executed, is_secret

# Globs and system paths


def is_system_path(field: Field, state: State, *, of_home: bool = True) -> bool:
    """Return True for the root, a folder the system stands on, a home, or everything inside one of them.

    With `of_home` false the home itself counts, but not everything inside it.
    """
    paths = state.paths(field) if field.text else []
    home = normal(state.home) if state.home is not None else "/"  # a home that is not known adds nothing
    return any(_is_system_path(normal(path), field.is_glob, home, of_home=of_home) for path in paths)


def _is_system_path(path: str, is_glob: bool, home: str, *, of_home: bool) -> bool:
    parts, home_parts = _parts(path), _parts(home)
    # The system's folders, the home and all folders around it.
    places = {*names("paths", "system"), *("/" + "/".join(home_parts[:count]) for count in range(len(home_parts) + 1))}
    if not is_glob:
        return path in places
    while parts and finds_most_names(parts[-1]):  # `/usr/*` is as much as `/usr`
        parts = parts[:-1]
    if not of_home and parts == home_parts:  # `~/*`: with its end taken off it looks like the home
        return path == home
    parts_of_places = (_parts(place) for place in places)
    return any(len(parts) == len(place) and all(map(finds, parts, place)) for place in parts_of_places)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def finds_most_names(glob: str) -> bool:
    """Return True if a glob finds most names, or most hidden ones: `*`, `.*`, `[!.]*`, `[a-z]*`, `.??*`."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "*" in glob and any(
        sum(finds(glob, f"{dot}{letter}xyz") for letter in letters) > len(letters) / 2 for dot in ("", ".")
    )


def finds(glob: str, name: str) -> bool:
    """Return True if a glob of one part finds a name. Only a literal dot finds a hidden name."""
    if name.startswith(".") and not glob.startswith("."):
        return False
    # fnmatch has no classes such as `[[:alpha:]]`, and negates with `!` alone.
    return fnmatch.fnmatchcase(name, re.sub(r"\[\[:\w+:\]\]", "?", glob).replace("[^", "[!"))


# Paths that a program reads

_PUBLIC, _STREAMS, _FOLDERS, _SECRETS = (names("paths", kind) for kind in ("public", "streams", "folders", "secrets"))
WILDCARD = re.compile(r"[*?\[]")  # for the shell, git and ripgrep


class ReadCheck:
    """Checks if one command may read the paths it names, and collects these in `reads`, as absolute paths."""

    def __init__(self, places: Places, state: State) -> None:
        self.places = places
        self.state = state
        self.reads: list[str] = []

    def problem(self, fields: Iterable[Field], kind: str) -> str:
        """Return the reason why a path may not be looked at, or an empty string. `kind`: see `Options.operands`."""
        return next((why for field in fields if (why := self._problem(field, kind))), "")

    def outside_problem(self, fields: Iterable[Field]) -> str:
        """Return the reason to ask about a path that a command names: it is outside the workspace, or holds secrets."""
        for field in fields:
            for path in self.state.paths(field) or self.state.likely_paths(field):
                known = self._folder_above_glob(path) if field.is_glob else path
                if normal(known) not in _STREAMS and path not in _PUBLIC and not self.places.is_readable(Path(known)):
                    shown = normal(path) if field.text == "." else field.text
                    return f"{shown} may hold secrets or is outside the workspace"
        return ""

    def _problem(self, field: Field, kind: str) -> str:
        if kind == "text" and not field.is_glob:  # no path
            return ""
        if not field.is_known:
            return "agentcli can't predict a path in it"
        if field.text in ("", "-"):  # no path, or the standard input
            return ""
        paths = self.state.paths(field)
        for path in paths:
            self.reads.append(normal(path))
            if not (self._glob_is_fine(path, kind) if field.is_glob else self._is_fine(path, kind)):
                return f"{field.text} may hold secrets or is outside the workspace"
        return "" if paths else "it is not certain in which folder it runs"

    def _is_fine(self, path: str, kind: str) -> bool:
        is_public_file = path in _PUBLIC and kind in ("content", "lines", "search", "sizes")
        is_public_folder = path in _FOLDERS and kind in ("lines", "sizes")
        if is_public_file or is_public_folder or self.places.is_readable(Path(path)):
            return True
        # Facts about a secret file are in the listing of its folder. A path with `..` at its end has another parent.
        return kind == "facts" and not path.endswith("..") and self.places.is_readable(Path(path).parent)

    def filter_problem(self, fields: Iterable[Field]) -> str:
        """Return the reason why a search may not be limited to such names, as with `grep --include` and `rg -g`."""
        for field in fields:
            places = self.state.places or ("/",)
            is_fine = all(self._kind_is_fine(field.text, place, "filter") for place in places)
            if not field.is_known or not (is_fine or field.text.startswith("!")):  # `!x` leaves names out
                return f"{field.text} looks for secrets"
        return ""

    def _folder_above_glob(self, path: str) -> str:
        found = WILDCARD.search(path)
        return path[: found.start()].rpartition("/")[0] or "/" if found else path

    def _glob_is_fine(self, path: str, kind: str) -> bool:
        folder = self._folder_above_glob(path)
        parts = path[len(folder) :].split("/")
        # A part such as `.*` finds the parent folder.
        finds_parent = any(part.startswith(".") and WILDCARD.search(part) for part in parts)
        if ".." in parts or finds_parent or not self.places.is_readable(Path(folder)):
            return False
        is_shown = kind in ("content", "lines", "search")
        return not is_shown or self._kind_is_fine(parts[-1], path.rpartition("/")[0], kind)

    def _kind_is_fine(self, glob: str, folder: str, kind: str) -> bool:
        """Return True for a glob such as `*.ts` or `src/*.{ts,tsx}` that finds no secret files by their endings.

        Single secret files among those it finds are left out by the search itself.
        """
        if not (found := re.fullmatch(r"(?:[\w/*-]*/)?\*\.(\w+|\{\w+(?:,\w+)*\})", glob)):
            return kind == "search" and not glob.strip("*")  # `*` searches no more than the folder itself would
        endings = [f".{ending}" for ending in found[1].strip("{}").split(",")]
        examples = [f"{name}{ending}" for ending in endings for name in ("", "x")]  # names that the glob finds
        examples += [name for name in _SECRETS if kind in ("content", "lines") and name.endswith(tuple(endings))]
        return all(self.places.is_readable(Path(folder, name)) for name in examples)


# Paths that a command names


def grave_reason(
    seen: Sequence[Sequence[Field]], values: Sequence[Field], effects: Effects, check: ReadCheck, *, why: str
) -> str:
    """Return the reason to ask before a command runs; an empty string if its changes can be shown afterwards.

    `seen` are the commands inside its wrappers, `values` those of the variables it sets, `why` is the reason why it
    does not only read.
    """
    if reason := next(filter(None, map(beyond_workspace, seen)), ""):
        return reason
    # Reasons of `problem_of` and of this module: what is shown is secret, or a path without wildcards leads outside.
    is_grave = re.search(r"environment|all variables|^[^*?\[]+ is outside the workspace$", why)
    if is_grave or any(host != UNKNOWN for host in effects.hosts):
        return why
    paths = [Field(path) for path in (*effects.reads, *effects.writes, *effects.deletes) if path != UNKNOWN]
    return check.outside_problem([*_named_paths(seen, values), *paths])


def named_secrets(seen: Sequence[Sequence[Field]], values: Sequence[Field], state: State) -> tuple[str, ...]:
    """Return the files that the words of a command name and that are secret by their names, whatever it does."""
    commands = [_naming_words(fields) for fields in seen]
    named = _named_paths(commands, values)
    named += [field for fields in commands for field in fields[1:] if not field.is_known]
    paths = (normal(path) for field in named for path in state.paths(field) or state.likely_paths(field))
    return tuple(dict.fromkeys(path for path in paths if is_secret(PurePath(path), _home(state))))


def _home(state: State) -> PurePath | None:
    return PurePath(state.home) if state.home is not None else None


def _naming_words(fields: Sequence[Field]) -> list[Field]:
    """Return the words of a command but its messages and the files it excludes; of git's `REVISION:PATH` the path."""
    words = [fields[0]]
    for before, field in itertools.pairwise(fields):
        is_message = re.search(r"\s", field.text)
        if not (_excludes(before, field) or is_message):
            path = field.text.rpartition(":")[2] if name_of(fields) == "git" else field.text
            words.append(replace(field, text=path))
    return words


def _excludes(before: Field, field: Field) -> bool:
    """Return True if a word, or the option before it, names files that the command leaves out."""
    is_exclusion = re.match(r"--(?:exclude(?:-dir|-from)?|ignore)=|:[!^]|:\([\w,]*exclude", field.text)
    return bool(is_exclusion or re.fullmatch(r"--(?:exclude(?:-dir|-from)?|ignore)", before.text))


def _named_paths(seen: Sequence[Sequence[Field]], values: Sequence[Field]) -> list[Field]:
    paths = [path for value in values for path in _mentioned_paths(value.text)]
    return [*paths, *(path for fields in seen for path in _paths_in(fields))]


_SYSTEM_PART = re.compile(rf"{HOLE}(/(?:etc|home|root|proc|sys|boot|var|Users)/[^{HOLE}]*)")
_OPTION_VALUE = re.compile(r"[\w-]+=(.+)|-[A-Za-z]((?:/|\.\./|~).*)", re.DOTALL)
# Text that may be a path and is no program, script or message.
_PATH = re.compile(r"[^\n$(){};\"'`|<>]{1,4096}")


def _paths_in(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield the words that may be paths. If the effects of the program name its paths, its operands are left out."""
    program, *arguments = fields
    is_standard = re.fullmatch(r"/(?:usr/(?:local/)?)?s?bin/[^/]+|/opt/homebrew/bin/[^/]+", program.text)
    if "/" in program.text and not is_standard:
        yield program
    name = name_of(fields)
    if name == "git" and (words := git_words(fields)) and re.fullmatch(r"[\w-]+", words[0].text):
        arguments[-len(words)] = Field(".")  # the subcommand is no path, but works in the folder
    for field in arguments:
        text = field.text
        if name in names("programs", "code"):
            yield from _mentioned_paths(text)
        if found := _SYSTEM_PART.search(text):
            yield Field(found[1])
        if found := _OPTION_VALUE.fullmatch(text):  # `--output=x`, `if=x`, `-I/x`
            text = found[1] or found[2]
        elif text.startswith("-") or names_its_paths(name):
            continue
        text = text.partition(HOLE)[0]
        if text and _PATH.fullmatch(text) and "://" not in text:
            yield Field(text, field.is_glob)


def _mentioned_paths(text: str) -> Iterator[Field]:
    # In code or a variable's value, `/usr/x` and `../x` may lead out of the workspace.
    found = re.findall(r"(?:^|[\s'\"=:(,])((?:/[\w.-]+/|\.\./)[\w./-]*)", text)
    return (Field(path) for path in found if HOLE not in path)


# Behind these a word may go on with a path: `--output=x`, `-d@x`, `-F f=<x`, `-ox`, `-sTx`.
_BEFORE_PATH = tuple(
    re.compile(each, re.DOTALL) for each in (r"[^=]*=(.+)", r"[^@<]*[@<](.+)", r"-\w(.+)", r"-\w+([./~].*)")
)


def opened_files(seen: Sequence[Sequence[Field]], state: State) -> tuple[str, ...]:
    """Return the secret files that words name, also as a part of an option, and the auto-executed ones.

    The latter do not count for a program whose effects name all that it writes, nor as the script of an interpreter.
    """
    found: list[str] = []
    for fields in seen:
        name = name_of(fields)
        words = [field.text for field in git_words(fields)] if name == "git" else []
        git_only_reads = bool(words) and words[0] in names("git", "reads_files")
        may_write = not names_its_paths(name) and not git_only_reads
        for part in _word_parts(fields):
            for path in map(PurePath, state.paths(part) or state.likely_paths(part)):
                if is_secret(path, _home(state)) or (may_write and is_auto_executed(path)):
                    found.append(normal(str(path)))
        if _sets_program_of_git(words):
            found += map(normal, state.paths(Field(".git/config")))  # where the setting is written
    return tuple(dict.fromkeys(found))


def _word_parts(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield the words behind the program, or behind the script it runs, and the parts of them that may be paths."""
    runs_script = name_of(fields) in names("programs", "run_scripts")
    is_script = runs_script and len(fields) > 1 and not fields[1].text.startswith("-")
    for before, field in itertools.pairwise(fields[1:] if is_script else fields):
        if not _excludes(before, field):
            texts = [field.text, *(found[1] for each in _BEFORE_PATH if (found := each.fullmatch(field.text)))]
            yield from (replace(field, text=text) for text in texts)


# Settings of git that neither start programs nor name further files with settings.
_PLAIN_SETTING = re.compile(
    r"(?:user|author|committer|color|column|branch|pull|push|rebase|status|log|advice|tag|rerere|fetch)\..*"
    r"|init\.defaultbranch|commit\.(?:gpgsign|verbose|status|cleanup)|merge\.(?:conflictstyle|ff|autostash)"
    r"|core\.(?:autocrlf|eol|safecrlf|filemode|ignorecase|quotepath|longpaths|precomposeunicode|symlinks|abbrev)",
    re.IGNORECASE,
)
# The options and subcommands of `git config` that only read or remove.
_READS_SETTINGS = re.compile(r"--?(?:get|list|l$|unset|remove|show).*|get|list|unset|remove-section")


def _sets_program_of_git(words: list[str]) -> bool:
    # Such as `config core.pager x`: a setting with a value that git may run, or read further settings from.
    actions = [*words[1:2], *(word for word in words if word.startswith("-"))]
    if words[:1] != ["config"] or any(_READS_SETTINGS.fullmatch(word) for word in actions):
        return False
    name = next((word for word in words if re.fullmatch(r"[A-Za-z][\w-]*\..*[A-Za-z][\w-]*", word)), "")
    has_value = name != "" and words.index(name) < len(words) - 1
    return has_value and not _PLAIN_SETTING.fullmatch(name)
