"""`agentcli skills` lists, shows, checks and creates skills; `agentcli hooks` lists and tests hooks."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.events import HookRan
from agentcli.agent.interfaces import EventAnswer
from agentcli.agent.permissions.rules import ALIASES
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_answer, print_json
from agentcli.conversation.entries import FILE
from agentcli.conversation.history import shorten
from agentcli.errors import UsageError
from agentcli.extensions.hooks.spec import EVENTS, HookSpec
from agentcli.extensions.programs import Hooks, Plugins, WorkspacePrograms
from agentcli.extensions.skills.activation import SkillRegistry
from agentcli.extensions.skills.find import Catalog, skill_folders, skills_in
from agentcli.extensions.skills.skill import Kind, Skill, problems_in, read_skill, split_frontmatter, unused_keys
from agentcli.extensions.subagents.definitions import Agents
from agentcli.llm.messages import ToolUse
from agentcli.safety.secrets.masking import mask
from agentcli.settings.files import current_folder, markdown_files, project_root, read_small_file
from agentcli.settings.load import Config

MAX_LINES = 500  # of a skill's instructions, as the specification recommends
_TEMPLATE = """\
---
name: {name}
description: {description}
---

# {title}

1. …
"""
_DESCRIPTION = "Does …. Use when the user asks for …"

skills_app = make_app("List, show, check and create skills: folders with a SKILL.md.")


@skills_app.command("list")
def list_skills(json: AsJson = False) -> None:
    """List the skills found here, and mark those in use."""
    config = configuration()
    catalog, settings = _all_skills(config), config.settings.skills
    usable_skills = _all_skills(config, with_untrusted=False)
    usable = {skill.folder for skill in usable_skills if settings.enabled and skill.name not in settings.off}
    rows = [_row(skill, catalog, is_usable=skill.folder in usable) for skill in catalog]
    rows += [_row(skill, catalog, is_usable=False) for skill in catalog.shadowed]
    for folder, why in catalog.problems.items():
        row = {"name": Path(folder).name, "description": "", "path": f"{folder}/{FILE}", "source": ""}
        rows.append(row | {"active": False, "warnings": [f"skipped: {why}"]})
    lines, width = [], max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        mark, description = "●" if row["active"] else "○", shorten(row["description"], 80)
        lines.append(f"{mark} {row['name']:<{width}}  {row['source']:<8} {description}")
        lines += [f"  {'':<{width}}  {warning}" for warning in row["warnings"]]
    if any(not row["active"] for row in rows):
        lines.append("○: not used. To use a project's skills, run `agentcli config trust`.")
    print_answer(rows, "\n".join(lines), as_json=json)


@skills_app.command()
def show(name: Annotated[str, typer.Argument(help="The name of a skill.")], json: AsJson = False) -> None:
    """Show a skill as the model sees it: description, instructions, files."""
    catalog = _all_skills(configuration())
    skill = SkillRegistry(catalog).get(name)
    try:
        keys, body = split_frontmatter(read_small_file(skill.file))
    except (OSError, ValueError) as error:
        raise UsageError(f"Could not read {skill.file}: {error}.") from error
    row = _row(skill, catalog, is_usable=True)
    if json:
        print_json(row | {"keys": msgspec.to_builtins(keys, str_keys=True, enc_hook=str), "instructions": body.strip()})
        return
    echo(f"{skill.name} ({skill.source}): {skill.description}\n{row['path']}")
    echo(f"\n{body.strip()}")
    if files := skill.resources():
        echo("\nFiles: " + ", ".join(files))


@skills_app.command()
def validate(
    folders: Annotated[list[str] | None, typer.Argument(metavar="[PATH …]", help="Folders of skills.")] = None,
    json: AsJson = False,
) -> None:
    """Check skills (default: all here) against the specification (agentskills.io). Exits with 1 on errors.

    Names keys that agentcli does not use; without PATH, also those of agents and commands found here.
    """
    config, paths = configuration(), [Path(folder).absolute() for folder in folders or ()]
    others: list[tuple[str, list[str], list[str]]] = []
    if not paths:
        paths = [Path(skill.folder) for skill in _all_skills(config) if skill.source != "bundled"]
        others = [(path, [], notes) for path, notes in _unused_in_others(config)]
    # Each check has a path, the faults found there, and notes.
    checks = [(str(path), *_check(path.parent if path.name == FILE else path)) for path in paths] + others
    texts = ["\n  ".join((f"{'✗' if faults else '✓'} {path}", *faults, *notes)) for path, faults, notes in checks]
    print_answer([{"path": path, "problems": faults} for path, faults, _ in checks], "\n".join(texts), as_json=json)
    raise typer.Exit(int(any(faults for _, faults, _ in checks)))


@skills_app.command()
def new(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and hyphens.")],
    description: Annotated[str, typer.Option(help="What it does, and when to use it.")] = _DESCRIPTION,
    project: Annotated[bool, typer.Option("--project", help="Create it in this project.")] = False,
) -> None:
    """Create a skill: a folder with a SKILL.md to fill in."""
    base = project_root(current_folder()) / ".agentcli" if project else configuration().paths.config
    folder = base / "skills" / name
    if faults := list(problems_in({"name": name, "description": description}, name)):
        raise UsageError(f"Could not create the skill: {faults[0]}.")
    if folder.exists():
        raise UsageError(f"{folder} already exists.")
    try:
        folder.mkdir(parents=True)
        quoted = msgspec.json.encode(description).decode()  # a JSON string is valid YAML, whatever the text contains
        text = _TEMPLATE.format(name=name, description=quoted, title=name.replace("-", " ").capitalize())
        (folder / FILE).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"Could not create {folder}: {error.strerror}.") from error
    hint = " To use it, run `agentcli config trust` here." if project else ""
    echo(f"Created {folder / FILE}. Write its instructions, then use it with /{name}.{hint}")


def _all_skills(config: Config, *, with_untrusted: bool = True) -> Catalog:
    plugins = Plugins(config=config, on_notice=warn).active
    return skills_in(skill_folders(config, with_untrusted=with_untrusted, plugins=plugins), config)


def _row(skill: Skill, catalog: Catalog, *, is_usable: bool) -> dict[str, Any]:
    first, warnings = catalog.by_name.get(skill.name), list(skill.warnings)
    if first is not None and first.folder != skill.folder:
        warnings.append(f"{first.folder} has the same name; to use this one: /{skill.source}:{skill.name}")
    row = {"name": skill.name, "description": skill.description, "path": str(skill.file), "source": skill.source}
    return row | {"active": is_usable, "warnings": warnings}


def _check(folder: Path) -> tuple[list[str], list[str]]:
    """Return the faults of a skill, and notes on keys that agentcli does not use."""
    try:
        keys, body = split_frontmatter(read_small_file(folder / FILE))
        faults = list(read_skill(folder, "user").warnings)
    except (OSError, ValueError) as error:
        return [getattr(error, "strerror", None) or str(error)], []
    if (lines := len(body.splitlines())) > MAX_LINES:
        faults.append(f"its instructions have {lines} lines, more than {MAX_LINES}. Move parts to references/")
    return faults, _unused_notes(keys, "skill")


def _unused_notes(keys: dict[str, Any], kind: Kind) -> list[str]:
    unused = ", ".join(unused_keys(keys, kind))
    return [f"(not used by agentcli: {unused})"] if unused else []


def _unused_in_others(config: Config) -> Iterator[tuple[str, list[str]]]:
    """Yield the files of subagents and commands that have unused keys or cannot be read, each with notes on it."""
    plugins = Plugins(config=config, on_notice=warn)
    folders: list[tuple[Path, Kind]] = [(folder, "agent") for folder, _ in Agents(plugins=plugins, added={}).folders]
    folders += [(folder, "command") for folder in config.command_folders]
    files = [(file, kind) for folder, kind in folders for file in markdown_files(folder)]
    for plugin in plugins.active:
        files += [(file, "agent") for file in plugin.agents.values()]
        files += [(file, "command") for file in plugin.commands.values()]
    for file, kind in files:
        try:
            if notes := _unused_notes(split_frontmatter(read_small_file(file))[0], kind):
                yield str(file), notes
        except (OSError, ValueError) as error:
            yield str(file), [f"(cannot be read: {error})"]


hooks_app = make_app("List hooks and test them.")
_EXAMPLE = 'hooks.PreToolUse = [{ matcher = "Bash", hooks = [{ type = "command", command = "~/bin/guard.sh" }] }]'
_EVENTS_ABOUT_CALLS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied")


def _hooks(config: Config, on_notice: Callable[[str], None] = warn) -> Hooks:
    return Hooks(Plugins(config=config, on_notice=on_notice), WorkspacePrograms(config))


@hooks_app.command("list")
def list_hooks(json: AsJson = False) -> None:
    """List the hooks in use here: yours, then those of the project if it is trusted."""
    specs = _hooks(configuration()).specs
    rows = [
        {
            **spec.handler,  # its keys are those of the settings
            "event": spec.event,
            "matcher": spec.matcher or "*",
            "timeout": spec.timeout_s,
            "onError": spec.on_error,
            "if": spec.condition,
            "source": spec.source,
            "environment": spec.environment,
            "title": spec.title,
        }
        for spec in specs
    ]
    print_answer(rows, format_hooks(specs), as_json=json)


def describe_hooks(config: Config) -> str:
    """List the hooks in use and the problems of unusable ones, with secrets masked."""
    problems: list[str] = []
    shown = format_hooks(_hooks(config, on_notice=problems.append).specs)
    return mask("\n".join([shown, *problems]))


def format_hooks(specs: Sequence[HookSpec]) -> str:
    lines = [f"{spec.event:<18} {spec.matcher or '*':<16} {spec.title}  ({spec.source})" for spec in specs]
    lines += dict.fromkeys(f"{spec.note}." for spec in specs if spec.note)
    return "\n".join(lines) or f"No hooks are set. For one, add to config.toml (see docs/hooks.md):\n{_EXAMPLE}"


@hooks_app.command("test")
def try_hooks(
    event: Annotated[str, typer.Argument(help=f"One of {', '.join(EVENTS)}.")],
    tool: Annotated[str, typer.Option(help="The tool that is called.")] = "bash",
    input: Annotated[str, typer.Option(help="Its arguments, or the fields of another event, as JSON.")] = "{}",
    json: AsJson = False,
) -> None:
    """Run the hooks of an event that are commands or addresses, and show their answers and the result."""
    if event not in EVENTS:
        raise UsageError(f"Unknown event {event!r}. Choose one of {', '.join(EVENTS)}.")
    try:
        fields = msgspec.json.decode(input, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"--input is not a JSON object: {error}.") from error
    if event in _EVENTS_ABOUT_CALLS:
        fields = {"call": ToolUse("test", ALIASES.get(tool, tool), fields)}
    else:
        _check_fields(fields)
    runs, answer = list[HookRan](), EventAnswer()
    if hooks := _hooks(configuration()).for_session("test", mode=lambda: "default"):
        hooks.context.publish = lambda event: runs.append(event) if isinstance(event, HookRan) else None
        answer = asyncio.run(hooks.fire(event, **fields))  # type: ignore[arg-type]
    lines = []
    for run in runs:
        parts = " · ".join(filter(None, (run.decision or "no decision", run.reason, run.problem)))
        lines.append(f"{run.command}: {parts} ({run.duration_ms} ms)")
    lines = lines or ["No hooks match."]
    if answer.input is not None:
        lines.append(f"New arguments: {msgspec.json.encode(answer.input).decode()}")
    if answer.context:
        lines.append(f"Context for the model: {answer.context}")
    data = {"ran": list(map(msgspec.to_builtins, runs)), "answer": msgspec.to_builtins(answer)}
    print_answer(data, "\n".join(lines), as_json=json)


def _check_fields(fields: dict[str, Any]) -> None:
    """Raise `UsageError` for fields that `RunningHooks.fire` cannot take."""
    for name, value in fields.items():
        if name in ("self", "event", "call"):
            raise UsageError(
                f"--input cannot contain {name}: agentcli fills in event and call itself, from EVENT and from --tool."
            )
        if name in ("subject", "agent_id") and not isinstance(value, str):
            raise UsageError(f"--input: {name} must be a string.")
