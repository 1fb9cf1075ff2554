"""Finds the effects of a command by its program, and recognizes programs that act beyond the workspace.

`beyond.ini` lists programs that act on the machine or on other machines. The effects of a program that is not in
`_EFFECTS_BY_PROGRAM` are not known.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath

from msgspec.structs import replace

from agentcli.safety.commands.arguments import git_words, listed_names, read_table
from agentcli.safety.commands.reader.syntax import Field, State, name_of, normal
from agentcli.safety.commands.records import UNKNOWN, Effects, known
from agentcli.safety.hosts import WEB_PORTS
from agentcli.safety.paths.judge import auto_executed, is_auto_executed

# In each of these, the first group is the host, and the second its port.
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*)://(?:[^/@\s]*@)?(\[[0-9a-fA-F:.]+\]|[^/:?#\s]+)(?::(\d{1,5})\b)?")
_HOST = re.compile(r"([\w-]+(?:\.[\w-]+)+|localhost)(?::(\d{1,5}))?(?:/\S*)?")
_REMOTE_PATH = re.compile(r"(?:[^@/:\s]+@)?([\w.-]+):(?!//|:)()")  # `user@host:path`, without a port


def _host_in(found: re.Match[str]) -> str:
    """Return the host of a match, with its port unless that is a web port, which every grant of a host covers."""
    port = int(found[2] or 0)
    return f"{found[1]}:{port}" if 0 < port < 65_536 and port not in WEB_PORTS else found[1]


_OUTPUT_OPTION = re.compile(r"-[a-zA-Z]*[oO]|--output|--output-document|-P|--directory-prefix")
_OUTPUT_IN_OPTION = re.compile(r"(?:-[a-zA-Z]*[oO](?=.*/)|--output(?:-document)?=)(.+)")  # `-so/x`, `--output=x`
_UPLOAD_OPTION = re.compile(r"-[a-zA-Z]*T|--(?:upload|post|body)-file")
_UPLOADED_FILE = re.compile(rf"(?:(?:-[a-zA-Z]*d)?@|[^=]*=[@<]|(?:{_UPLOAD_OPTION.pattern})=?)([^;]+)")
EffectsFunction = Callable[[Sequence[Field], State], Effects]
UNKNOWN_EFFECTS = Effects(reads=(UNKNOWN,), writes=(UNKNOWN,), deletes=(UNKNOWN,), hosts=(UNKNOWN,), runs=(UNKNOWN,))


def effects_of(fields: Sequence[Field], state: State) -> Effects:
    """Return the effects of a simple command without wrappers that may do more than read. `fields` is not empty."""
    if not fields[0].is_known:
        return UNKNOWN_EFFECTS
    name = name_of(fields)
    if program_effects := _EFFECTS_BY_PROGRAM.get(name):
        return program_effects(fields[1:], state)
    installer, _ = _program_and_subcommand(fields)
    hosts = _REGISTRY_HOSTS.get(installer, ()) if beyond_workspace(fields) else ()  # `npm install`, not `npm test`
    if not hosts:  # it may reach any host, also those in its arguments
        found = (_URL.match(field.text) for field in fields[1:])
        this_machine = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")  # noqa: S104
        hosts = (UNKNOWN, *(_host_in(url) for url in found if url and url[1] not in this_machine))
    return replace(UNKNOWN_EFFECTS, hosts=hosts, runs=(name,))


def names_its_paths(name: str) -> bool:
    """Return True for a program whose effects name every path that it uses."""
    return name in _EFFECTS_BY_PROGRAM and name not in (*_RUNS_SCRIPTS, *_DOWNLOADERS, "git")


def effects_of_redirect(operator: str, target: Field, state: State) -> Effects:
    if found := re.match(r"/dev/(?:tcp|udp)/([^/]+)", target.text):
        return Effects(hosts=(found[1],))
    paths = absolute_paths([target], state)
    return Effects(reads=paths) if operator == "<" else Effects(writes=paths)


def absolute_paths(fields: Sequence[Field], state: State) -> tuple[str, ...]:
    """Return the absolute paths or globs that words mean; for a word that is not known, `UNKNOWN` and likely paths."""
    paths_by_word = ([*map(normal, state.paths(field))] or [UNKNOWN, *state.likely_paths(field)] for field in fields)
    return tuple(itertools.chain.from_iterable(paths_by_word))


def operands_of(arguments: Sequence[Field], letters_with_value: str = "") -> list[Field]:
    """Return the arguments that are neither options nor the values of those in `letters_with_value`, such as `-n 5`."""
    operands: list[Field] = []
    words = iter(arguments)
    for field in words:
        if field.text == "--":
            return [*operands, *words]
        if not field.text.startswith("-") or field.text == "-":
            operands.append(field)
        elif len(field.text) == 2 and field.text[1] in letters_with_value:
            next(words, None)  # skips the value
    return operands


def _effect_on_operands(kind: str, letters_with_value: str = "", skipped: int = 0) -> EffectsFunction:
    """Return a function for programs with one effect, a field of `Effects`, on all operands but the `skipped` first."""

    def effects(arguments: Sequence[Field], state: State) -> Effects:
        return Effects(**{kind: absolute_paths(operands_of(arguments, letters_with_value)[skipped:], state)})

    return effects


def _copy_effects(arguments: Sequence[Field], state: State) -> Effects:
    sources, targets = sources_and_targets(arguments)
    written, created = _written_paths(sources, targets, state), _auto_executed_targets(sources, targets, state)
    return Effects(reads=absolute_paths(sources, state), writes=written, names=created)


def _move_effects(arguments: Sequence[Field], state: State) -> Effects:
    copied = _copy_effects(arguments, state)
    return Effects(writes=copied.writes, deletes=copied.reads, names=copied.names)


def sources_and_targets(arguments: Sequence[Field]) -> tuple[list[Field], list[Field]]:
    """Return the sources and the target of a copy: the last operand, unless `-t` names it."""
    for at, field in enumerate(arguments):
        option = re.fullmatch(r"-[A-Za-su-z]*t(.*)|--t[a-z-]*(?:=(.*))?", field.text, re.DOTALL)
        if option and (folder := option[1] or option[2]):  # the folder is in the same word: `--target-directory=x`
            return operands_of([*arguments[:at], *arguments[at + 1 :]]), [Field(folder)]
        if option and at + 1 < len(arguments):
            return operands_of([*arguments[:at], *arguments[at + 2 :]]), [arguments[at + 1]]
    operands = operands_of(arguments)
    return operands[:-1], operands[-1:]


def _written_paths(sources: Sequence[Field], targets: Sequence[Field], state: State) -> tuple[str, ...]:
    """Return the targets, and the auto-executed files that are certainly created in a folder: `cp .bashrc ~`."""
    written = absolute_paths(targets, state)
    # The target must be a folder if there are several sources, or if it is `..` or ends in a slash.
    is_folder = bool(targets) and (len(sources) > 1 or re.fullmatch(r"(.*/)?(\.{0,2})", targets[0].text))
    folders = [path for path in known(written) if is_folder or path == state.home]
    names = [PurePath(source.text).name for source in sources]
    created = [f"{folder}/{name}" for folder in folders for name in names if is_auto_executed(PurePath(name))]
    return (*written, *created)


def _auto_executed_targets(sources: Sequence[Field], targets: Sequence[Field], state: State) -> tuple[str, ...]:
    """Return the auto-executed files that a copy creates if its target is a folder, which the text may not show."""
    # A target that is not known may be the folder in which the command starts.
    folders = known(absolute_paths(targets, state)) or (state.start,)
    lists = (_with_auto_executed_files(PurePath(source.text).name, is_glob=source.is_glob) for source in sources)
    paths = (f"{folder.rstrip('/')}/{name}" for names in lists for name in names for folder in folders)
    return tuple(path for path in paths if is_auto_executed(PurePath(path)))


def _with_auto_executed_files(name: str, *, is_glob: bool) -> list[str]:
    """Return what a copy of a file or folder creates: its name, and auto-executed files in it, such as `.git/config`.

    For a glob such as `.*`, return the auto-executed files and folders that it matches.
    """
    known_paths = (*auto_executed().names, *auto_executed().reviewed)
    if is_glob and name.startswith("."):
        return [path for path in known_paths if fnmatchcase(path.partition("/")[0], name)]
    return [name, *(path for path in known_paths if path.startswith(f"{name}/"))]


def _dd_effects(arguments: Sequence[Field], state: State) -> Effects:
    sources = [Field(field.text.removeprefix("if=")) for field in arguments if field.text.startswith("if=")]
    found = ((field, re.fullmatch(r"(?:h?of|ofs|wipe)=(.*)", field.text, re.DOTALL)) for field in arguments)
    targets = [Field(output[1], field.is_glob) for field, output in found if output]
    return Effects(reads=absolute_paths(sources, state), writes=absolute_paths(targets, state))


def _ddrescue_effects(arguments: Sequence[Field], state: State) -> Effects:
    operands = operands_of(arguments)
    return Effects(reads=absolute_paths(operands[:1], state), writes=absolute_paths(operands[1:], state))


def _download_effects(arguments: Sequence[Field], state: State) -> Effects:
    """Return the effects of curl, wget and the like: the hosts, the files they write, and those they upload."""
    pairs = [*itertools.pairwise(arguments)]  # each word, perhaps an option, with the word after it
    # In `curl -O URL`, the word after the option is not its value.
    files = [word for option, word in pairs if _OUTPUT_OPTION.fullmatch(option.text) and not _URL.match(word.text)]
    # `is`, because equal words may mean different things: `curl -o example.org example.org` has a file and a host.
    other_words = [field.text for field in arguments if not any(field is file for file in files)]
    hosts = tuple(_host_in(found) for text in other_words if (found := _URL.match(text) or _HOST.fullmatch(text)))
    files += [Field(found[1]) for field in arguments if (found := _OUTPUT_IN_OPTION.fullmatch(field.text))]
    # `curl -T file`, `wget --post-file=file`, `curl -d @file`, `-F name=@file`; `-` is the standard input.
    names = [word.text for option, word in pairs if _UPLOAD_OPTION.fullmatch(option.text)]
    names += [found[1] for field in arguments if (found := _UPLOADED_FILE.match(field.text))]
    uploaded = absolute_paths([Field(name) for name in names if name != "-"], state)
    return Effects(reads=uploaded, writes=absolute_paths(files, state), hosts=hosts or (UNKNOWN,))


def _ssh_effects(arguments: Sequence[Field], state: State) -> Effects:
    """Return the effects of ssh, whose first operand is a host; the other operands are run there."""
    operands = operands_of(arguments, "bcDEeFIiJLlmOopQRSWw")
    host = operands[0].text.rpartition("@")[2] if operands else UNKNOWN
    return Effects(reads=(UNKNOWN,), hosts=(host,), runs=tuple(field.text for field in operands[1:2]))


def _remote_copy_effects(arguments: Sequence[Field], state: State) -> Effects:
    """Return the effects of scp and the like, whose sources and target may be on other machines: `host:path`."""
    operands = operands_of(arguments)
    hosts = tuple(found[1] for field in operands if (found := _REMOTE_PATH.match(field.text)))
    sources, targets = operands[:-1], operands[-1:]
    reads = [field for field in sources if not _REMOTE_PATH.match(field.text)]
    writes = [field for field in targets if not _REMOTE_PATH.match(field.text)]
    created = _auto_executed_targets(sources, writes, state) if writes else ()  # if the target is a folder
    return Effects(reads=absolute_paths(reads, state), writes=absolute_paths(writes, state), hosts=hosts, names=created)


_GIT_READERS = ("blame", "cat-file", "describe", "diff", "grep", "log", "ls-files", "rev-parse", "shortlog", "show")


def _git_effects(arguments: Sequence[Field], state: State) -> Effects:
    subcommand = git_words([Field("git"), *arguments])  # with the words after it
    for option, folder in itertools.pairwise(arguments[: len(arguments) - len(subcommand)]):  # git's own options
        if option.text == "-C":
            state = state.entering(folder)
    words = [field.text for field in operands_of(subcommand, "Cc")]  # without the `HEAD` of `git commit -C HEAD`
    name = words[0] if words else ""
    here = absolute_paths([Field(".")], state)  # the text does not show which files of the repository are used
    # In `clone ADDRESS FOLDER` and `worktree add FOLDER`, the word at 2 is the folder that git creates.
    if name in ("push", "fetch", "pull", "clone", "ls-remote", "submodule", "remote"):
        found = (_URL.match(word) or _REMOTE_PATH.match(word) for word in words)
        hosts = tuple(_host_in(host) for host in found if host) or (UNKNOWN,)
        cloned = absolute_paths(operands_of(subcommand, "bcoju")[2:3], state) if name == "clone" else ()
        return Effects(reads=here, writes=() if name == "push" else (*here, *cloned), hosts=hosts, runs=("git",))
    deletes = absolute_paths(operands_of(subcommand)[1:], state) if name == "rm" else ()
    may_write = any(not field.is_known or field.text.startswith("--output") for field in subcommand)
    only_reads = name in _GIT_READERS and not may_write
    worktree = absolute_paths(operands_of(subcommand, "bB")[2:3], state) if words[:2] == ["worktree", "add"] else ()
    return Effects(reads=here, writes=() if only_reads else (*here, *worktree), deletes=deletes, runs=("git",))


def _sed_effects(arguments: Sequence[Field], state: State) -> Effects:
    is_in_place = any(re.match(r"-[nErsuz]*i|--in-place", field.text) for field in arguments)
    has_script_option = any(re.match(r"-[nErsuz]*[ef]|--(expression|file)", field.text) for field in arguments)
    operands = operands_of(arguments, "ef")
    paths = absolute_paths(operands if has_script_option else operands[1:], state)  # else the first is the script
    # A script may write files, with `w` or `s///w`.
    return Effects(reads=paths, writes=paths if is_in_place else (UNKNOWN,), runs=("sed",))


def _interpreter_effects(name: str) -> EffectsFunction:
    """Return a function for an interpreter: its script may do anything."""

    def effects(arguments: Sequence[Field], state: State) -> Effects:
        has_script_file = bool(arguments) and not arguments[0].text.startswith("-")
        script_files = absolute_paths(arguments[:1], state) if has_script_file else ()
        return replace(UNKNOWN_EFFECTS, runs=(name, *script_files))

    return effects


_DOWNLOADERS = ("curl", "wget", "http", "https", "xh")
_RUNS_SCRIPTS = ("python", "python3", "node", "ruby", "perl", "sh", "bash", "php", "lua")

_EFFECTS_BY_PROGRAM: dict[str, EffectsFunction] = {  # by program: the function that returns its effects
    **dict.fromkeys(listed_names("programs", "readers"), _effect_on_operands("reads", "nc")),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _effect_on_operands("reads", "mABC", 1)),
    **dict.fromkeys("rm rmdir unlink shred srm wipe scrub nwipe".split(), _effect_on_operands("deletes")),
    **dict.fromkeys(("touch", "mkdir", "tee", "truncate", "mkfifo", "sponge"), _effect_on_operands("writes", "srm")),
    **dict.fromkeys(("chmod", "chown", "chgrp"), _effect_on_operands("writes", "", 1)),
    **dict.fromkeys(("cp", "install", "ln"), _copy_effects),
    "mv": _move_effects,
    **dict.fromkeys(("dd", "dcfldd", "dc3dd"), _dd_effects),
    "ddrescue": _ddrescue_effects,
    **dict.fromkeys(_DOWNLOADERS, _download_effects),
    "ssh": _ssh_effects,
    **dict.fromkeys(("scp", "rsync", "sftp"), _remote_copy_effects),
    "git": _git_effects,
    "sed": _sed_effects,
    **{name: _interpreter_effects(name) for name in _RUNS_SCRIPTS},
}


_TABLES = read_table("beyond")
_ALWAYS_BEYOND = frozenset(name for names in _TABLES["always"].values() for name in names.split())
_REMOTE_SUBCOMMANDS = {name: words.split() for key, words in _TABLES["subcommands"].items() for name in key.split()}
_REGISTRY_HOSTS = {name: tuple(hosts.split()) for row, hosts in _TABLES["registries"].items() for name in row.split()}
# Options before a subcommand that take the next word.
_VALUE_OPTIONS = frozenset("-C -c --git-dir --work-tree --prefix --cwd --dir --directory --project --config".split())


def beyond_workspace(fields: Sequence[Field]) -> str:
    """Return the reason to ask before a command that acts beyond the workspace runs; an empty string for others."""
    name, subcommand = _program_and_subcommand(fields)
    if name == "parallel":
        if any(field.text.startswith(("-S", "--sshlogin")) for field in fields):
            return "parallel runs on other machines"
        command = [*itertools.dropwhile(lambda field: field.text.startswith("-"), fields[1:])]
        return beyond_workspace(command) if command else ""
    texts = [field.text for field in fields]
    has_global_option = not {"-g", "--global", "--system"}.isdisjoint(texts)
    is_global = has_global_option and (name in _REGISTRY_HOSTS or subcommand == "config")
    if subcommand == "exec" and name in ("pnpm", "yarn") and not is_global:
        executed = fields[texts.index("exec") + 1 :]  # an installed program: nothing is fetched
        return beyond_workspace(executed) if executed else ""
    is_installed = name == "npx" and _runs_project_tool(texts[1:])
    reasons = (
        (name in _ALWAYS_BEYOND, f"{name} acts beyond the workspace"),
        (is_global, f"{name} {subcommand} changes what is beyond the workspace"),
        (name in ("npx", "bunx", "pnpx", "uvx", "pipx") and not is_installed, f"{name} fetches what it runs"),
        (subcommand in _REMOTE_SUBCOMMANDS.get(name, ()), f"{name} {subcommand} reaches other machines"),
        (name == "yarn" and len(fields) == 1, "yarn reaches other machines"),  # alone, it installs
    )
    return next((reason for applies, reason in reasons if applies), "")


def _runs_project_tool(words: Sequence[str]) -> bool:
    """Return True for arguments with which npx runs a tool of the project, or is not allowed to fetch one."""
    tool = next((word for word in words if word not in listed_names("programs", "npx_options")), "")
    options = words[: words.index(tool)] if tool else []
    return tool in listed_names("programs", "npx_tools") or ("--no-install" in options and not tool.startswith("-"))


def _program_and_subcommand(fields: Sequence[Field]) -> tuple[str, str]:
    """Return the program and its subcommand; `python -m pip` is `pip`, `go mod download` is `go download`."""
    words = [field.text for field in fields]
    name = words[0].rpartition("/")[2]
    if name.startswith("python") and len(words) > 2 and words[1] == "-m":
        name, words = words[2], words[2:]
    remaining = words[1:]
    while remaining and remaining[0].startswith("-"):
        remaining = remaining[2 if remaining[0] in _VALUE_OPTIONS else 1 :]
    if name == "go" and remaining[:1] == ["mod"]:
        remaining = remaining[1:]
    return name, remaining[0] if remaining else ""
