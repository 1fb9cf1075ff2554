"""Finds the rules that a project keeps for other coding agents, and determines when each applies.

Like AGENTS.md, such a file is data: it gives the model instructions, but grants no permissions.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct, field

from agentcli.patterns import lazy_pattern
from agentcli.safety.paths.judge import PatternBase, is_secret
from agentcli.settings.files import is_file, read_small_file, text_files

_HEAD = lazy_pattern(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL)  # frontmatter
_KEY = lazy_pattern(r"([\w-]+):(?:[ \t]+(.*))?")  # a key, perhaps with a value
_COMMA = lazy_pattern(r",(?![^{]*\})")  # outside of braces
_LIST = lazy_pattern(r"\[([^][]*(?:\[.*)?)\]")  # a glob such as `[ab]/[cd]` closes its first bracket in the middle
_EVERYTHING = {"**", "*", "**/*"}  # globs of all files
_BOOLEANS = {"true": True, "false": False, "": False}


class RuleFileKind(NamedTuple):
    """The places of one tool's rules in a folder."""

    files: tuple[str, ...]  # these always apply
    folders: tuple[str, ...] = ()  # the files in these say when they apply
    endings: tuple[str, ...] = (".md",)  # of the files in `folders`
    applies_by_default: bool = True  # a file that says nothing applies always; False: only when the person names it


RULE_FILE_KINDS = {
    "claude": RuleFileKind((".claude/CLAUDE.md",), (".claude/rules",)),
    "cursor": RuleFileKind((".cursorrules",), (".cursor/rules",), (".mdc",), False),
    "copilot": RuleFileKind(
        (".github/copilot-instructions.md",), (".github/instructions",), (".instructions.md",), False
    ),
    "windsurf": RuleFileKind((".windsurfrules",), (".windsurf/rules", ".devin/rules")),
    "cline": RuleFileKind((".clinerules",), (".clinerules", ".cline/rules"), (".md", ".txt")),
    "aider": RuleFileKind(("CONVENTIONS.md",)),
}


class RuleFile(Struct, frozen=True, kw_only=True):
    """A file of rules for coding agents in a project."""

    path: Path
    folder: Path
    # "files": the model gets it with the first file that matches its globs; "request": if the model reads it because of
    # its description; "named": when the person names it.
    applies: Literal["always", "files", "request", "named"] = "always"
    globs: tuple[str, ...] = ()  # relative to `folder`
    description: str = ""
    problem: str = ""  # in its frontmatter; the file then applies always

    def matches(self, file: Path, home: Path | None) -> bool:
        from agentcli.safety.commands.records import matches_path  # imported here because few projects need it

        base = PatternBase(root=self.folder, cwd=self.folder, home=home or Path("/"))
        return any(matches_path(glob, file, base) for glob in self.globs)

    @property
    def condition(self) -> str:
        """Describe to the person when the model gets the file."""
        return {
            "always": "always",
            "files": f"when a file that matches {', '.join(self.globs)} is read or changed",
            "request": f"when the model finds that it fits: {self.description}",
            "named": "only when you name it with @",
        }[self.applies]


class RuleFileFinder(Struct, kw_only=True):
    """Finds the rule files of the project at `root`, except those of `disabled` kinds. It reads each folder only once.

    It reads only files inside the project that hold no secrets: otherwise a repository could choose which files of this
    machine the model sees.
    """

    root: Path
    home: Path | None = None
    disabled: Collection[str] = ()  # names of `RULE_FILE_KINDS`, and of kinds of instruction files
    _found: dict[Path, tuple[RuleFile, ...]] = field(default_factory=dict)

    def rule_files_in(self, folder: Path) -> tuple[RuleFile, ...]:
        if folder not in self._found:
            kinds = [kind for name, kind in RULE_FILE_KINDS.items() if name not in self.disabled]
            self._found[folder] = tuple(rule for kind in kinds for rule in self._files_of_kind(kind, folder))
        return self._found[folder]

    def rule_files_for(self, file: Path) -> Iterator[RuleFile]:
        """Yield the rule files whose globs match a file, those of outer folders first."""
        for folder in reversed(file.parents):
            if folder.is_relative_to(self.root):
                rules = (rule for rule in self.rule_files_in(folder) if rule.applies == "files")
                yield from (rule for rule in rules if rule.matches(file, self.home))

    def _files_of_kind(self, kind: RuleFileKind, folder: Path) -> Iterator[RuleFile]:
        yield from (RuleFile(path=folder / name, folder=folder) for name in kind.files if is_file(folder / name))
        for subfolder in kind.folders:
            for path in text_files(folder / subfolder, kind.endings):
                content, problem = read_project_file(path, self.root, self.home)
                if problem:  # the problem is reported when the text is needed, so the file is not left out here
                    yield RuleFile(path=path, folder=folder)
                else:
                    yield _parse_rule(path, folder, content, applies_by_default=kind.applies_by_default)


def read_project_file(file: Path, within: Path, home: Path | None) -> tuple[bytes, str]:
    """Return the beginning of a file, or b"" and the reason why it may not or cannot be read. Never raises."""
    try:
        real = file.resolve(strict=True)
        if not real.is_relative_to(within.resolve()):
            return b"", "it leads out of the project"
        if is_secret(real, home):
            return b"", "it leads to a file that may hold secrets"
        content = read_small_file(file, real=real, truncates=True)
    except (OSError, RuntimeError) as error:  # before Python 3.13 a loop of symlinks is a RuntimeError
        return b"", f"it cannot be read ({getattr(error, 'strerror', 'it is a loop of links')})"
    return (b"", "it is not text") if b"\0" in content else (content, "")


def split_frontmatter(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the keys of a rule file's frontmatter, each with its lines, and the text below. Raises `ValueError`.

    This is not a YAML parser, because people write globs without the quotation marks that YAML requires.
    """
    if not re.match(r"---[ \t]*\n", text):
        return {}, text
    if (head := _HEAD.match(text)) is None:
        raise ValueError("the line that ends it is missing")
    keys: dict[str, list[str]] = {}
    name = ""
    for number, line in enumerate(head[1].splitlines(), 2):
        if found := _KEY.fullmatch(line.rstrip()):
            name = found[1]
            keys[name] = [found[2] or ""]
        elif name and re.match(r"[ \t]|-[ \t]", line):
            keys[name].append(line.strip().removeprefix("- "))
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"line {number} is neither a key nor an item of a list")
    return keys, text[head.end() :]


def _parse_rule(path: Path, folder: Path, content: bytes, *, applies_by_default: bool) -> RuleFile:
    """Return a rule file with the condition in its frontmatter, which may have the keys of any of several tools.

    Without a condition, a file always applies if `applies_by_default`. Otherwise the model may request it because of
    its description, or the person must name it.
    """
    try:
        keys, _ = split_frontmatter(content.decode("utf-8-sig", errors="replace").replace("\r\n", "\n"))
        globs = tuple(item for key in ("paths", "globs", "applyTo") for item in _list_items(keys.get(key, ())))
        is_always = _BOOLEANS.get(_one_line_value(keys, "alwaysApply").lower())
        if is_always is None:
            raise ValueError("alwaysApply is neither true nor false")
    except ValueError as error:
        return RuleFile(path=path, folder=folder, problem=str(error))
    description, trigger = _one_line_value(keys, "description"), _one_line_value(keys, "trigger")  # Windsurf's key
    applies: Literal["always", "files", "request", "named"]
    if is_always or trigger == "always_on" or _EVERYTHING & set(globs):
        applies = "always"
    elif trigger == "manual":
        applies = "named"
    elif globs:
        applies = "files"
    elif description and (trigger == "model_decision" or not applies_by_default):
        applies = "request"
    else:
        applies = "always" if applies_by_default else "named"
    return RuleFile(path=path, folder=folder, applies=applies, globs=globs, description=description)


def _one_line_value(keys: dict[str, list[str]], key: str) -> str:
    """Return the value of a key without quotation marks and without the YAML marks of a block (`|`, `>`)."""
    return " ".join(line for line in keys.get(key, ()) if line not in ("", "|", ">", "|-", ">-")).strip(" \"'")


def _list_items(lines: Iterable[str]) -> Iterator[str]:
    """Yield the items of a list, or of lines in which commas separate them. Raises `ValueError`."""
    for line in lines:
        if line.startswith("[") != line.endswith("]") and line.count("[") != line.count("]"):
            raise ValueError(f"the list {line} has only one bracket")
        inner = found[1] if (found := _LIST.fullmatch(line)) else line
        yield from filter(None, (item.strip(" \"'") for item in _COMMA.split(inner)))
