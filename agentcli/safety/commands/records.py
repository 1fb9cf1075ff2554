"""Defines the input and the result of judging a command, and matches permission rules for commands and paths."""

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from agentcli.patterns import lazy_pattern
from agentcli.safety.paths.judge import PatternBase

# allow: the command only reads, inside the workspace. try: it changes things there, or its text does not show what it
# does; a dry run can show its changes. ask: it reaches further. block: it runs in no mode.
CommandVerdict = Literal["allow", "try", "ask", "block"]

UNKNOWN = "?"  # in `Effects`: paths, hosts or programs that the text does not show
_MAX_BRACES = 5  # in a glob; those of one with more are taken literally


class WorkspaceView(Struct, frozen=True, kw_only=True):
    """All that the judge of a command knows of the disk.

    `cwd` is the folder where the command would run, `roots` are the workspace's folders, `home` is the person's home;
    all are absolute. `is_readable` returns True for an absolute path that, symlinks followed, is inside the workspace
    and holds no secret. `program_of_git` returns the setting that makes git run a program in a folder, or "".
    `git_setup` returns what determines git's remotes in a folder, or None.
    """

    cwd: Path
    roots: tuple[Path, ...]
    home: Path
    is_readable: Callable[[Path], bool]
    program_of_git: Callable[[Path], str] = lambda folder: ""
    git_setup: Callable[[str], "GitSetup | None"] = lambda folder: None


class GitSetup(Struct, frozen=True, kw_only=True):
    """The settings of git in a folder, by name as `git config --list` prints them, and its repository there.

    `program` is a setting, or another reason, because of which git may run a program that the repository chose; or "".
    """

    settings: tuple[tuple[str, str], ...] = ()
    branch: str = ""  # the one that is checked out
    top: str = ""  # the top folder of the working tree
    program: str = ""

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.settings if key == name]

    def sections(self, kind: str, key: str) -> list[tuple[str, str]]:
        """Return the name and the value for each `kind.NAME.key`, such as `remote.NAME.url`."""
        found = ((re.fullmatch(rf"{kind}\.(.*)\.{key}", name, re.DOTALL), value) for name, value in self.settings)
        return [(match[1], value) for match, value in found if match]


class Effects(Struct, frozen=True, kw_only=True):
    """The effects of a command: absolute paths or globs, host names, programs it starts; `UNKNOWN` if there are others.

    `remotes` are remotes of git that a confined command does not reach by itself: `ssh://HOST`, or a folder. `names`
    are secret and auto-executed files that its words may mean: an allow rule for the command does not cover them, but a
    yes to the command does not open them either.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    remotes: tuple[str, ...] = ()

    def __or__(self, other: "Effects") -> "Effects":
        effects, more = structs.asdict(self), structs.asdict(other)
        return Effects(**{kind: tuple(dict.fromkeys((*effects[kind], *more[kind]))) for kind in effects})


def known(things: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths, hosts or programs that a command's text shows."""
    return tuple(thing for thing in things if thing != UNKNOWN)


class Segment(Struct, frozen=True, kw_only=True):
    """One simple command, also from inside substitutions, `sh -c`, `xargs` and `find -exec`.

    `text` is the command as written. `words` are its words without quotes and without wrappers such as `timeout 5`,
    with globs as written; None if only the shell knows one of them. Allow rules match `allow_forms`, deny and ask rules
    match `deny_forms`.
    """

    text: str
    words: tuple[str, ...] | None = None
    verdict: CommandVerdict = "allow"  # a placeholder until the command is judged
    reason: str = ""
    effects: Effects = Effects()
    allow_forms: tuple[str, ...] = ()
    deny_forms: tuple[str, ...] = ()


class Doubts(Struct, frozen=True):
    """The doubts that remain about a command. `effects` are those of scripts that it may run, for deny and ask rules.

    `must_ask` says why no rule and no mode may allow it: a catastrophe in such a script, or a part that was not judged.
    `unreadable` says why deny and ask rules cannot be checked against all of it.
    """

    effects: Effects = Effects()
    must_ask: str = ""
    unreadable: str = ""


class CommandAnalysis(Struct, frozen=True, kw_only=True):
    """The judgement on a whole command: the worst verdict of its segments, or a worse one because of `problem`.

    With a `problem`, more may run than the segments show, so no grant covers the command, and `deletes_unseen` says if
    it may delete files that it does not name, and why. `scratch` are files in /tmp that it creates and uses.
    """

    segments: tuple[Segment, ...]
    verdict: CommandVerdict
    reason: str
    effects: Effects
    problem: str = ""
    doubts: Doubts = Doubts()
    deletes_unseen: str = ""
    scratch: tuple[str, ...] = ()


def covers(pattern: str, segment: Segment) -> bool:
    """Return True if an allow rule such as `git log *` covers this simple command; False in doubt.

    Harmless wrappers and quotes make no difference. No rule covers a redirection into a file. A rule must name wrappers
    such as `sudo`, and variables that may matter to programs (`CI=1 npm test`). `git log *` also covers `git log`.
    """
    return segment.verdict != "block" and any(_matches(form, pattern) for form in segment.allow_forms)


def restricts(pattern: str, segment: Segment) -> bool:
    """Return True if a deny or ask rule such as `rm *` matches this simple command in any of its forms.

    Wrappers, quotes, variables and the program's folder make no difference, nor does `find -exec` or `xargs` before it.
    Allow rules match fewer forms (`covers`), so a form that means something else can only cause a question or denial.
    """
    return any(_matches(form, pattern) for form in segment.deny_forms)


def rules_by_segment(analysis: CommandAnalysis) -> tuple[tuple[str, ...], ...]:
    """Return rules to offer for each simple command that does more than read: globs that cover it, narrowest first.

    Empty if no rules could cover the command as a whole: one of its simple commands has none, or it cannot be read.
    """
    if analysis.problem:
        return ()
    rules = tuple(_rules_for(segment) for segment in analysis.segments if segment.verdict != "allow")
    return rules if all(rules) else ()


def _matches(form: str, pattern: str) -> bool:
    pattern = " ".join(pattern.split())
    # `git log *` matches `git log` too.
    return any(fnmatch.fnmatchcase(form, each) for each in (pattern, pattern.removesuffix(" *")))


def _rules_for(segment: Segment) -> tuple[str, ...]:
    """Return a rule for the exact command, then rules for its program and subcommand with any arguments.

    Empty if a rule could allow anything, or if the command's words are not known.
    """
    if not segment.allow_forms or segment.words is None or _runs_anything(segment.words):
        return ()
    exact = escaped(segment.allow_forms[-1])  # the last form has the fewest wrappers and git options
    broader = [f"{escaped(' '.join(start))} *" for start in _first_words_for_rules(segment.words)]
    # `words` have no wrappers, but a rule must name some of them, such as `sudo`: leave out rules that do not match.
    return tuple(dict.fromkeys(rule for rule in (exact, *broader) if covers(rule, segment)))


def _words_of_kind(kind: str) -> tuple[str, ...]:  # the words by which rules to offer are chosen
    from agentcli.safety.commands.arguments import listed_names  # the tables are only read once there is a command

    return listed_names("offered", kind)


def _runs_anything(words: tuple[str, ...]) -> bool:
    """Return True for a shell, or an interpreter or tool that runs the script or program in its arguments."""
    if _is_known_module(words):
        return False
    name = words[0].rpartition("/")[2]
    is_given_text = len(words) == 1 or words[1].startswith("-")  # `python` or `python -c '…'`, not `python x.py`
    if name in _words_of_kind("runners") or (name in _words_of_kind("interpreters") and is_given_text):
        return True
    # The list has subcommands of any program, such as `exec`, and of a single one, such as `cargo:run`.
    subcommands = {*words[1:2], ":".join(words[:2])}
    return name in _words_of_kind("with_subcommands") and not subcommands.isdisjoint(_words_of_kind("run_anything"))


def _is_known_module(words: tuple[str, ...]) -> bool:
    """Return True for `python3 -m pytest` and other modules that do the same as the program of their name."""
    is_python = words[0] in _words_of_kind("interpreters") and words[0].startswith("py")
    return is_python and len(words) > 2 and words[1] == "-m" and words[2] in _words_of_kind("single_purpose")


def escaped(text: str) -> str:
    """Return a glob that matches only this text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _first_words_for_rules(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the first words that a broader rule may name, longest first: `pytest`; `cargo test`; `npm run test:unit`.

    Such a rule allows the command with any arguments.
    """
    program, second, third = (*words[:3], "", "")[:3]  # a missing word is ""
    if program in _words_of_kind("single_purpose"):
        return [words[:1]]
    if _is_known_module(words):
        return [words[:3]]
    if program not in _words_of_kind("with_subcommands") or not re.fullmatch(r"[A-Za-z][A-Za-z-]*", second):
        return []
    if f"{program}:{second}" in _words_of_kind("groups"):  # `npm run`, `docker compose`: the third word says what
        is_named = re.fullmatch(r"[A-Za-z][\w:.-]*", third) and third not in _words_of_kind("run_anything")
        return [words[:3]] if is_named else []
    # If there are only three words, they are the exact command, which has a rule already.
    starts = [words[:3]] if len(words) > 3 and re.fullmatch(r"[A-Za-z][A-Za-z-]*", third) else []
    return [*starts, words[:2]]


def is_literal(pattern: str) -> bool:
    """Return True if a glob matches only one text."""
    return not re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", pattern))


def matches_path(pattern: str, path: Path, base: PatternBase) -> bool:
    """Return True if a path glob covers an absolute path.

    - `//x` is absolute, `~/x` is below home, `./x` and `a/b` are below the working directory.
    - `/x` is below the project, or absolute if it begins with the project, the working directory or home.
    - A glob without a slash matches a name at any depth below the working directory.
    - `*` stays within a folder, `**` does not; `{a,b}` matches either. A glob that matches a folder covers all of it.
    """
    return any(_regex(_anchored(each, base)).fullmatch(str(path)) for each in _expand_braces(pattern))


@lru_cache(maxsize=1_000)
def _expand_braces(pattern: str) -> tuple[str, ...]:
    """Return a glob itself, because a file's name may have braces, and the globs that its braces expand to."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern) if pattern.count("{") <= _MAX_BRACES else None
    if found is None:
        return (pattern,)
    before, behind = pattern[: found.start()], pattern[found.end() :]
    patterns = (f"{before}{choice}{behind}" for choice in found[1].split(","))
    return (pattern, *(each for expanded in patterns for each in _expand_braces(expanded)))


def _anchored(pattern: str, base: PatternBase) -> str:
    """Return a glob of absolute paths, by the rules in `matches_path`."""
    if pattern.startswith("//"):
        return pattern[1:]
    if pattern == "~" or pattern.startswith("~/"):
        return f"{escaped(str(base.home))}{pattern[1:]}"
    if pattern.startswith("/"):
        root, *others = (escaped(str(folder)) for folder in (base.root, base.cwd, base.home))
        is_absolute = pattern.startswith(tuple(f"{folder}/" for folder in (root, *others)))
        return pattern if is_absolute else f"{root}{pattern}"
    depth = "" if "/" in pattern else "**/"
    return f"{escaped(str(base.cwd))}/{depth}{pattern.removeprefix('./')}"


@lru_cache(maxsize=1_000)
def _regex(glob: str) -> re.Pattern[str]:
    """Translate a glob; the expression also matches everything in a folder that the glob matches."""
    clean = re.sub(r"/(\.?/)+", "/", f"{glob}/").rstrip("/")  # `a//b` and `a/./b` are `a/b`
    return re.compile(_GLOB_TOKEN.sub(_translate_token, clean) + "(?:/.*)?", re.DOTALL)


_GLOB_TOKEN = lazy_pattern(r"/\*\*/|\*+|\?|\[(?P<negation>[!^]?)(?P<members>\]?[^\]]*)\]|.", re.DOTALL)


def _translate_token(match: re.Match[str]) -> str:
    if match["members"] is not None:
        members = re.sub(r"([\\[&~|])", r"\\\1", match["members"])  # escapes and set operations only in `re`
        return f"[{'^' if match['negation'] else ''}{members}]"
    token, wildcards = match[0], {"/**/": "/(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return ".*" if token.startswith("**") else wildcards.get(token, re.escape(token))


def is_path_glob(pattern: str) -> bool:
    """Return False for a glob with invalid brackets, such as `[z-a]`."""
    try:
        return all(_regex(each) for each in _expand_braces(pattern))
    except re.error:
        return False
