"""Decides if a program may read a path, recognizes paths whose loss ruins the system, and finds what a command reaches.

A command may reach other hosts, paths outside the workspace, secret files and auto-executed files.
"""

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

from msgspec.structs import replace

from agentcli.safety.commands.arguments import git_words, listed_names
from agentcli.safety.commands.effects import beyond_workspace, names_its_paths
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, Field, State, name_of, normal
from agentcli.safety.commands.records import Effects, WorkspaceView, known
from agentcli.safety.paths.judge import is_auto_executed, is_secret


def is_system_path(field: Field, state: State, *, includes_home_content: bool = True) -> bool:
    """Return True for the root, a folder that the system needs, the home, or a glob of everything in one of them.

    With `includes_home_content=False`, a glob of everything in the home does not count, but the home itself does.
    """
    paths = state.paths(field) if field.text else []
    home = normal(state.home)
    return any(_is_system_path(normal(path), field.is_glob, home, includes_home_content) for path in paths)


def _is_system_path(path: str, is_glob: bool, home: str, includes_home_content: bool) -> bool:
    home_parts = _parts(home)
    home_and_above = {"/" + "/".join(home_parts[:count]) for count in range(len(home_parts) + 1)}
    system_folders = home_and_above.union(listed_names("paths", "system"))
    if not is_glob or path == home:  # `normal` has turned the glob `~/*/..` into the home
        return path in system_folders
    parts = _parts(path)
    while parts and finds_most_names(parts[-1]):  # deleting `/usr/*` is as bad as deleting `/usr`
        parts = parts[:-1]
    is_home_content = bool(home_parts) and parts == home_parts  # for a home `/`, `/*` is the whole system
    if is_home_content and not includes_home_content:
        return False
    parts_of_folders = map(_parts, system_folders)
    return any(len(parts) == len(folder) and all(map(glob_matches, parts, folder)) for folder in parts_of_folders)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def finds_most_names(glob: str) -> bool:
    """Return True if a glob matches most names, or most hidden ones: `*`, `.*`, `[!.]*`, `[a-z]*`, `.??*`."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "*" in glob and any(
        sum(glob_matches(glob, f"{dot}{letter}xyz") for letter in letters) > len(letters) / 2 for dot in ("", ".")
    )


def glob_matches(glob: str, name: str) -> bool:
    """Return True if a glob of one path part matches a name. Only a literal dot matches a hidden name."""
    if name.startswith(".") and not glob.startswith("."):
        return False
    # fnmatch knows no classes such as `[[:alpha:]]`, and `[!x]` but not `[^x]`.
    return fnmatch.fnmatchcase(name, re.sub(r"\[\[:\w+:\]\]", "?", glob).replace("[^", "[!"))


_PUBLIC_FILES, _STREAM_DEVICES = listed_names("paths", "public"), listed_names("paths", "streams")
_COMMON_FOLDERS, _SECRET_EXAMPLES = listed_names("paths", "folders"), listed_names("paths", "secrets")
WILDCARD = re.compile(r"[*?\[]")  # for the shell, git and ripgrep


def folder_above_glob(path: str) -> str:
    """Return the folder in which a glob's first wildcard matches names; a path without wildcards as it is."""
    found = WILDCARD.search(path)
    return path[: found.start()].rpartition("/")[0] or "/" if found else path


class ReadCheck:
    """Checks if one command may read the paths it names, and collects the absolute paths in `reads`."""

    def __init__(self, workspace: WorkspaceView, state: State) -> None:
        self.workspace = workspace
        self.state = state
        self.reads: list[str] = []

    def problem(self, fields: Iterable[Field], *, shows: str) -> str:
        """Return why a program may not read one of the paths, or "". For what it `shows` of them see `Options`."""
        return next((why for field in fields if (why := self._problem(field, shows))), "")

    def outside_problem(self, fields: Iterable[Field]) -> str:
        """Return the reason to ask about a path that is outside the workspace or holds secrets, or an empty string."""
        for field in fields:
            for path in self.state.paths(field) or self.state.likely_paths(field):
                top = folder_above_glob(path) if field.is_glob else path
                is_public = normal(top) in _STREAM_DEVICES or path in _PUBLIC_FILES
                if not (is_public or self.workspace.is_readable(Path(top))):
                    shown = normal(path) if field.text == "." else field.text  # "." alone says nothing to a person
                    return f"{shown} may hold secrets or is outside the workspace"
        return ""

    def _problem(self, field: Field, shows: str) -> str:
        if shows == "text" and not field.is_glob:  # the word is not a path
            return ""
        if not field.is_known:
            return "agentcli can't predict a path in it"
        if field.text in ("", "-"):  # nothing, or the standard input
            return ""
        paths = self.state.paths(field)
        for path in paths:
            self.reads.append(normal(path))
            if not (self._may_read_glob(path, shows) if field.is_glob else self._may_read(path, shows)):
                return f"{field.text} may hold secrets or is outside the workspace"
        return "" if paths else "it is not certain in which folder it runs"

    def _may_read(self, path: str, shows: str) -> bool:
        is_public_file = path in _PUBLIC_FILES and shows in ("content", "lines", "search", "sizes")
        is_public_folder = path in _COMMON_FOLDERS and shows in ("lines", "sizes")  # these show nothing of a folder
        if is_public_file or is_public_folder or self.workspace.is_readable(Path(path)):
            return True
        # A listing of the readable folder around a secret file shows its facts, too. `x/..` has another parent.
        return shows == "facts" and not path.endswith("..") and self.workspace.is_readable(Path(path).parent)

    def filter_problem(self, fields: Iterable[Field]) -> str:
        """Return the reason why filters such as `grep --include` or `rg -g` look for secrets, or an empty string."""
        for field in fields:
            folders = self.state.folders or ("/",)  # if it is not known, any folder will do
            is_exclusion = field.text.startswith("!")
            is_fine = is_exclusion or all(self._may_read_matches(field.text, folder) for folder in folders)
            if not field.is_known or not is_fine:
                return f"{field.text} looks for secrets"
        return ""

    def _may_read_glob(self, path: str, shows: str) -> bool:
        folder = folder_above_glob(path)
        parts = path[len(folder) :].split("/")
        # A part such as `.*` may match `..`, the parent folder.
        finds_parent = any(part.startswith(".") and WILDCARD.search(part) for part in parts)
        if ".." in parts or finds_parent or not self.workspace.is_readable(Path(folder)):
            return False
        if shows not in ("content", "lines", "search"):
            return True  # only contents are secret
        above, _, name = path.rpartition("/")
        if shows == "search":
            # A search of the whole folder, also as `*`, is allowed: only a search that aims at secret files is not.
            return name.strip("*") == "" or self._may_read_matches(name, above)
        return self._may_read_matches(name, above, secrets=_SECRET_EXAMPLES)

    def _may_read_matches(self, glob: str, folder: str, *, secrets: Sequence[str] = ()) -> bool:
        """Return True for a glob such as `*.ts` or `src/*.{ts,tsx}` that certainly matches no secret file in a folder.

        One name with and one without a stem stand for all with an ending: `x.env` and `.env`. `secrets` are further
        names to try, such as `credentials.json`, which is secret although `x.json` is not.
        """
        if not (found := re.fullmatch(r"(?:[\w/*-]*/)?\*\.(\w+|\{\w+(?:,\w+)*\})", glob)):
            return False
        endings = [f".{ending}" for ending in found[1].strip("{}").split(",")]
        matches = [f"{name}{ending}" for ending in endings for name in ("", "x")]
        matches += [name for name in secrets if name.endswith(tuple(endings))]
        return all(self.workspace.is_readable(Path(folder, name)) for name in matches)


# The problems, as `problem_of` and `ReadCheck` word them, of commands that show variables, or a path that may hold
# secrets. The path has no wildcards, because `outside_problem` finds out more about a glob.
_MAY_SHOW_SECRETS = re.compile(r"environment|all variables|^[^*?\[]+ is outside the workspace$")


def reason_to_ask(
    layers: Sequence[Sequence[Field]], values: Sequence[str], effects: Effects, check: ReadCheck, *, problem: str
) -> str:
    """Return the reason to ask before a command runs; an empty string if a dry run can show what it does.

    `layers` are its words with and without each wrapper, `values` are the values of the variables it sets, and
    `problem` is the reason why it does more than read.
    """
    if reason := next(filter(None, map(beyond_workspace, layers)), ""):
        return reason
    if _MAY_SHOW_SECRETS.search(problem) or known(effects.hosts):  # what was shown or sent cannot be discarded
        return problem
    paths = [Field(path) for path in known((*effects.reads, *effects.writes, *effects.deletes))]
    return check.outside_problem([*_paths_of_call(layers, values), *paths])


def named_secrets(layers: Sequence[Sequence[Field]], values: Sequence[str], state: State) -> tuple[str, ...]:
    """Return the paths in a command's words that are secret by their names: whatever it does, it may read them.

    For `layers` and `values` see `reason_to_ask`.
    """
    layers = [_words_without_messages(fields) for fields in layers]
    possible_paths = _paths_of_call(layers, values)
    possible_paths += [field for fields in layers for field in fields[1:] if not field.is_known]  # such as `$X/.env`
    paths = (normal(path) for field in possible_paths for path in state.paths(field) or state.likely_paths(field))
    return tuple(dict.fromkeys(path for path in paths if is_secret(PurePath(path), PurePath(state.home))))


def _words_without_messages(fields: Sequence[Field]) -> list[Field]:
    """Return the words of a command without messages and excluded files, and with `REVISION:PATH` of git as `PATH`."""
    words = [fields[0]]
    for before, field in itertools.pairwise(fields):
        is_message = re.search(r"\s", field.text)
        if not (is_message or _excludes(before, field)):
            path = field.text.rpartition(":")[2] if name_of(fields) == "git" else field.text
            words.append(replace(field, text=path))
    return words


def _excludes(before: Field, field: Field) -> bool:
    """Return True if a word, or the option before it, names files that the command leaves out."""
    is_exclusion = re.match(r"--(?:exclude(?:-dir|-from)?|ignore)=|:[!^]|:\([\w,]*exclude", field.text)
    return bool(is_exclusion or re.fullmatch(r"--(?:exclude(?:-dir|-from)?|ignore)", before.text))


def _paths_of_call(layers: Sequence[Sequence[Field]], values: Sequence[str]) -> list[Field]:
    """Return what may be paths in a command's words and in the values of its variables."""
    paths = [path for value in values for path in _paths_in_code(value)]
    return [*paths, *(path for fields in layers for path in _path_words(fields))]


# The known end of a word such as `$X/etc/passwd`.
_SYSTEM_PART = re.compile(rf"{UNKNOWN_TEXT}(/(?:etc|home|root|proc|sys|boot|var|Users)/[^{UNKNOWN_TEXT}]*)")
_OPTION_VALUE = re.compile(r"[\w-]+=(.+)|-[A-Za-z]((?:/|\.\./|~).*)", re.DOTALL)
# Text that may be a path, and does not look like a script or a message.
_PATH = re.compile(r"[^\n$(){};\"'`|<>]{1,4096}")


def _path_words(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield the words that may be paths, so that they can be checked for secret files and places outside the workspace.

    If a program's effects name all its paths, its operands are left out, because its effects are checked as well.
    """
    program, *arguments = fields
    is_system_program = re.fullmatch(r"/(?:usr/(?:local/)?)?s?bin/[^/]+|/opt/homebrew/bin/[^/]+", program.text)
    if "/" in program.text and not is_system_program:
        yield program
    name = name_of(fields)
    if name == "git" and (words := git_words(fields)) and re.fullmatch(r"[\w-]+", words[0].text):
        arguments[-len(words)] = Field(".")  # the subcommand is not a path, but it works in the current folder
    for field in arguments:
        text = field.text
        if name in listed_names("programs", "code"):
            yield from _paths_in_code(text)
        if found := _SYSTEM_PART.search(text):
            yield Field(found[1])
        if found := _OPTION_VALUE.fullmatch(text):  # `--output=x`, `if=x`, `-I/x`
            text = found[1] or found[2]
        elif text.startswith("-") or names_its_paths(name):
            continue
        text = text.partition(UNKNOWN_TEXT)[0]
        if text and _PATH.fullmatch(text) and "://" not in text:
            yield Field(text, field.is_glob)


def _paths_in_code(text: str) -> Iterator[Field]:
    """Return the paths in code, or in a variable's value, that may lead out of the workspace: `/usr/x` and `../x`."""
    found = re.findall(r"(?:^|[\s'\"=:(,])((?:/[\w.-]+/|\.\./)[\w./-]*)", text)
    return (Field(path) for path in found if UNKNOWN_TEXT not in path)


# Words that end in a path, which is the group: `--output=x`, `-d@x`, `-F f=<x`, `-ox`, `-sT/x`.
_ENDING_IN_PATH = tuple(
    re.compile(each, re.DOTALL) for each in (r"[^=]*=(.+)", r"[^@<]*[@<](.+)", r"-\w(.+)", r"-\w+([./~].*)")
)


def sensitive_files(layers: Sequence[Sequence[Field]], state: State) -> tuple[str, ...]:
    """Return the secret and auto-executed files that the words of a command name, even if only a part of a word does.

    The script of an interpreter does not count. Auto-executed files do not count if the command only reads, or if its
    effects name every file that it writes. `layers` are its words with and without each wrapper.
    """
    found: list[str] = []
    for fields in layers:
        name = name_of(fields)
        words = [field.text for field in git_words(fields)] if name == "git" else []
        git_only_reads = bool(words) and words[0] in listed_names("git", "reads_files")
        may_write = not names_its_paths(name) and not git_only_reads
        for part in _words_and_path_parts(fields):
            for path in map(PurePath, state.paths(part) or state.likely_paths(part)):
                if is_secret(path, PurePath(state.home)) or (may_write and is_auto_executed(path)):
                    found.append(normal(str(path)))
        if _sets_program_of_git(words):
            found += map(normal, state.paths(Field(".git/config")))  # where the setting is written
    return tuple(dict.fromkeys(found))


def _words_and_path_parts(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield the words after the program, or after the script it runs, and the parts of words that may be paths."""
    runs_scripts = name_of(fields) in listed_names("programs", "run_scripts")
    has_script = runs_scripts and len(fields) > 1 and not fields[1].text.startswith("-")
    for before, field in itertools.pairwise(fields[1:] if has_script else fields):
        if not _excludes(before, field):
            path_parts = [found[1] for each in _ENDING_IN_PATH if (found := each.fullmatch(field.text))]
            yield from (replace(field, text=text) for text in (field.text, *path_parts))


# Settings of git that neither start programs nor name further files with settings.
_PLAIN_SETTING = re.compile(
    r"(?:user|author|committer|color|column|branch|pull|push|rebase|status|log|advice|tag|rerere|fetch)\..*"
    r"|init\.defaultbranch|commit\.(?:gpgsign|verbose|status|cleanup)|merge\.(?:conflictstyle|ff|autostash)"
    r"|core\.(?:autocrlf|eol|safecrlf|filemode|ignorecase|quotepath|longpaths|precomposeunicode|symlinks|abbrev)",
    re.IGNORECASE,
)
# Options and subcommands of `git config` that only read or remove settings.
_READS_SETTINGS = re.compile(r"--?(?:get|list|l$|unset|remove|show).*|get|list|unset|remove-section")


def _sets_program_of_git(words: list[str]) -> bool:
    """Return True for `config core.pager x`: git may run the value of the setting, or read more settings from it."""
    actions = [*words[1:2], *(word for word in words if word.startswith("-"))]  # `get`, `--get`
    if words[:1] != ["config"] or any(_READS_SETTINGS.fullmatch(word) for word in actions):
        return False
    name = next((word for word in words if re.fullmatch(r"[A-Za-z][\w-]*\..*[A-Za-z][\w-]*", word)), "")
    has_value = name != "" and words.index(name) < len(words) - 1
    return has_value and not _PLAIN_SETTING.fullmatch(name)


def scratch_files(text: str) -> tuple[str, ...]:
    """Return the files in /tmp that a command creates and then names again: `make >/tmp/log; tail /tmp/log`.

    The sandbox's empty /tmp is enough for them. A file named before the command creates it may be one in the real /tmp.
    """
    found = []
    for creation in re.finditer(r"(?:>\s*|\s-o\s+|\btee\s+)(/tmp/\w[\w.-]*)(?![\w./*?\[{$-])", text):
        path = creation[1]
        again = re.compile(rf"(?<![^\s;&|(<>]){re.escape(path)}(?![^\s;&|)<>])")  # as a word of its own
        if path not in text[: creation.start(1)] and again.search(text, creation.end()):
            found.append(path)
    return tuple(found)
