"""Reads SKILL.md files (agentskills.io), also those for other tools, and the frontmatter of commands and subagents."""

import os
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from agentcli.conversation.entries import FILE, SkillRecord, Source
from agentcli.patterns import lazy_pattern
from agentcli.settings.files import is_file, read_small_file

MAX_CHARS = {"name": 64, "description": 1_024, "compatibility": 500}  # of the specification
MAX_RESOURCES = 200

_SPECIFIED = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
# Keys that other tools have added, and two of agentcli: `tools` and `nested-skills`.
ADDED_KEYS = (  # some have no meaning here, see `unused_keys`
    *"user-invocable disable-model-invocation argument-hint arguments when-to-use when_to_use whenToUse".split(),
    *"model effort version author context agent hooks tags tools nested-skills".split(),
)
_NAME = lazy_pattern(r"\w[\w.-]*")
_TOOL = lazy_pattern(r"[A-Za-z_][\w*-]*(?:\([^)]*\))?")
# A key with an unquoted value on one line. Some values are valid only in quotes: `description: Use it so: first …`.
_PLAIN_VALUE = r"(?m)^([\w-]+):[ \t]+([^\s\"'|>\[{&*!%@`#].*?)[ \t]*$(?!\n[ \t]+\S)"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Skill(SkillRecord, frozen=True):
    """A skill before it is activated (level 1). `digest` is the SHA-256 of its SKILL.md.

    While it is active, its rules `allowed_tools` grant calls, only its `tools` may be called (None: all), and its
    `model` and `effort` are used. Other skills may be activated within it if it `may_nest`. If it `takes_words`, the
    first word of the request replaces `$1` in its text, and its `arguments` are further names for the words.
    """

    def instructions(self) -> str:
        """Return the text below the frontmatter (level 2). Raises `OSError` and `ValueError`."""
        data = read_small_file(self.file)
        # A project's skill must be as it was when it was trusted, because it grants rights and the model may edit it.
        if self.source in ("project", "plugin") and sha256(data).hexdigest() != self.digest:
            raise ValueError(
                f"it changed since the session started. Start a new session and trust the {self.source} again"
            )
        return split_frontmatter(data)[1].strip()

    def fill(self, text: str) -> str:
        """Replace the variables for the skill's folder, and for that of its plugin, in a text of the skill."""
        folders = {"AGENTCLI_SKILL_DIR": self.folder, "CLAUDE_SKILL_DIR": self.folder}
        if self.plugin_root:
            folders |= dict.fromkeys(("CLAUDE_PLUGIN_ROOT", "AGENTCLI_PLUGIN_ROOT", "PLUGIN_ROOT"), self.plugin_root)
        for name, folder in folders.items():
            text = text.replace(f"${{{name}}}", folder)
        return text

    def resources(self) -> list[str]:
        """Return its other files (level 3) as paths relative to its folder, without hidden ones."""
        paths: list[str] = []
        for folder, folders, names in os.walk(self.folder):
            folders[:] = filter(_is_visible, folders)
            files = (Path(folder, name) for name in filter(_is_visible, names))
            paths += [str(file.relative_to(self.folder)) for file in files if is_file(file)]
        return [path for path in sorted(paths) if path != FILE][:MAX_RESOURCES]

    def resource(self, name: str) -> Path:
        """Return the real path of a resource. Raises `OSError`, and `ValueError` for one outside of its folder."""
        folder = Path(self.folder).resolve()
        path = (folder / name).resolve(strict=True)
        if not path.is_relative_to(folder) or not path.is_file():
            raise ValueError("it is not a file of the skill")
        return path


def read_skill(folder: Path | str, source: Source) -> Skill:
    """Return the skill in a folder. Raises `OSError` or `ValueError` if it cannot be used."""
    folder = Path(folder)
    data = read_small_file(folder / FILE)
    keys, body = split_frontmatter(data)
    warnings = [*problems_in(keys, folder.name)]
    description = one_line(keys, "description")
    if not description:
        raise ValueError("it has no description")
    name = one_line(keys, "name")
    if len(name) > MAX_CHARS["name"] or not _NAME.fullmatch(name):
        name = folder.name  # `problems_in` reports it
    if not _NAME.fullmatch(name):
        raise ValueError("its name contains characters that commands cannot have")
    if not body.strip():
        warnings.append("it has no instructions")
    effort = one_line(keys, "effort")
    if effort and effort not in _EFFORTS:
        warnings.append(f"effort {effort!r} is not one of {', '.join(_EFFORTS)}")
    when = next((one_line(keys, key) for key in ("when-to-use", "when_to_use", "whenToUse") if key in keys), "")
    return Skill(
        name=name,
        description=" ".join(part for part in (description, when) if part),
        folder=str(folder),
        source=source,
        digest=sha256(data).hexdigest(),
        argument_hint=one_line(keys, "argument-hint"),
        allowed_tools=tuple(tool_rules(keys.get("allowed-tools"))),
        tools=tuple(tool_rules(keys["tools"])) if "tools" in keys else None,
        model="" if one_line(keys, "model") == "inherit" else one_line(keys, "model"),
        effort=effort if effort in _EFFORTS else "",
        for_model=not is_on(keys, "disable-model-invocation", default=False),
        for_person=is_on(keys, "user-invocable", default=True),
        may_nest=is_on(keys, "nested-skills", default=True),
        takes_words="argument-hint" in keys or "arguments" in keys,
        arguments=tuple(tool_rules(keys.get("arguments"))),
        warnings=tuple(warnings),
    )


def problems_in(keys: dict[str, Any], folder: str) -> Iterator[str]:
    """Yield the faults of a skill's keys by the specification; known keys of other tools are not faults."""
    name = one_line(keys, "name")
    if not name:
        yield "it has no name, so the name of its folder is used"
    elif not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > MAX_CHARS["name"]:
        yield f"its name {name!r} is not 1 to {MAX_CHARS['name']} lower-case letters, digits and single hyphens"
    elif name != folder:
        yield f"its name {name!r} differs from its folder, {folder!r}"
    for key in ("description", "compatibility"):
        if (length := len(one_line(keys, key))) > MAX_CHARS[key]:
            yield f"its {key} has {length:,} characters; the limit is {MAX_CHARS[key]:,}"
    if unknown := [key for key in keys if key not in (*_SPECIFIED, *ADDED_KEYS)]:
        yield f"unknown key{'s' * (len(unknown) > 1)} {', '.join(unknown)}"


Kind = Literal["skill", "agent", "command"]
# The keys that agentcli uses in files of each kind. Those in `_DESCRIBING` only describe a file, of any kind.
_USED: dict[Kind, Sequence[str]] = {
    "skill": (*_SPECIFIED, *ADDED_KEYS),
    "agent": "name description tools disallowedTools model maxTurns skills".split(),
    "command": "description argument-hint arguments allowed-tools model disable-model-invocation".split(),
}
_DESCRIBING = "license compatibility metadata version author tags keywords color title".split()
_UNUSED = ("hooks", "context", "agent")  # in `ADDED_KEYS`, but without effect


def unused_keys(keys: dict[str, Any], kind: Kind) -> list[str]:
    """Return the keys of a file that have an effect in other tools, but none in agentcli."""
    return [key for key in keys if key in _UNUSED or key not in (*_USED[kind], *_DESCRIBING)]


def tool_rules(value: Any) -> Sequence[str]:
    """Return rules or names of tools from a YAML list, or from a line in which spaces or commas separate them."""
    return [str(rule) for rule in value] if isinstance(value, list) else _TOOL.findall(str(value or ""))


def split_frontmatter(data: bytes) -> tuple[dict[str, Any], str]:
    """Return the keys and the body of a Markdown file; no keys if it does not begin with `---`. Raises `ValueError`."""
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    frontmatter = re.match(r"(?sm)\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", text)
    if frontmatter is None:
        return {}, text
    # `argument-hint: [since] [until]` is common, but not valid YAML, or a list. In quotes it is text.
    source = re.sub(r"(?m)^(argument-hint):[ \t]+([^\s\"'|>].*?)[ \t]*$", _quoted, frontmatter[1])
    try:
        keys = _load_yaml(source)
    except ValueError as error:
        try:  # with plain values in quotes, which other tools accept without them
            keys = _load_yaml(re.sub(_PLAIN_VALUE, _quoted, source))
        except ValueError:
            raise error from error.__cause__  # the first one, which is about the text as it was written
    if isinstance(keys, dict | None):
        return {str(key): value for key, value in (keys or {}).items()}, text[frontmatter.end() :]
    raise ValueError("its frontmatter is not a list of keys and values")


def _load_yaml(source: str) -> Any:
    import yaml  # 10 ms

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(source, loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: an invalid date
        raise ValueError(" ".join(str(error).split())) from error


def _quoted(line: re.Match[str]) -> str:
    value = line[2].replace("'", "''")
    return f"{line[1]}: '{value}'"


def one_line(keys: dict[str, Any], key: str) -> str:
    """Return the value of a key on one line; empty for a list or a map."""
    value = keys.get(key)
    return "" if value is None or isinstance(value, list | dict) else " ".join(str(value).split())


def is_on(keys: dict[str, Any], key: str, *, default: bool) -> bool:
    value = keys.get(key, default)
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "yes", "on", "1")


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in ("node_modules", "__pycache__")
