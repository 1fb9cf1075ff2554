"""`agentcli skills`: lists, shows, checks and begins skills."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins
from msgspec.json import encode

from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json
from agentcli.conversation.skill_record import FILE
from agentcli.conversation.titles import shortened
from agentcli.errors import UsageError
from agentcli.extensions.skills.activation import SkillRegistry
from agentcli.extensions.skills.config import places
from agentcli.extensions.skills.find import Catalog, find_skills
from agentcli.extensions.skills.skill import (
    LONGEST_DESCRIPTION,
    LONGEST_NAME,
    Skill,
    added_keys,
    keys_of,
    problems_in,
    read_skill,
)
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder, project_root

MAX_LINES = 500  # of the instructions: what the specification advises
_TEMPLATE = """\
---
name: {name}
description: {description}
---

# {title}

1. …
"""
_MAX_SHOWN = 80  # characters of a description
_DESCRIPTION = "Does …. Use when the user asks for …"

app = make_app("List, show, check and begin skills: folders with a SKILL.md.")


@app.command("list")
def list_skills(json: AsJson = False) -> None:
    """List the skills that are found here, those that count first."""
    config = configuration()
    catalog = _every(config)
    usable = {skill.folder for skill in find_skills(places(config), _cache(config))}
    rows = [_row(skill, catalog, is_active=_is_active(config, skill, usable)) for skill in catalog]
    rows += [_row(skill, catalog, is_active=False) for skill in catalog.shadowed]
    rows += [
        _shown(Path(one.path).name, "", f"{one.path}/{FILE}", "", is_active=False, warnings=[f"left out: {one.why}"])
        for one in catalog.left_out
    ]
    if json:
        print_json(rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        mark = "●" if row["active"] else "○"
        tell(f"{mark} {row['name']:<{width}}  {row['source']:<8} {shortened(row['description'], _MAX_SHOWN)}")
        for warning in row["warnings"]:
            tell(f"  {'':<{width}}  {warning}")
    if any(not row["active"] for row in rows):
        tell("○: not used. A project's skills count after `agentcli config trust`.")


@app.command()
def show(name: Annotated[str, typer.Argument(help="A skill's name.")], json: AsJson = False) -> None:
    """Show a skill as the model gets it: what it is, its instructions, its files."""
    catalog = _every(configuration())
    skill = SkillRegistry(catalog).get(name)
    try:
        keys, body = keys_of(Path(skill.folder))
    except (OSError, ValueError) as error:
        raise UsageError(f"{skill.file} could not be read: {error}.") from error
    row = _row(skill, catalog, is_active=True)
    if json:
        print_json({**row, "keys": to_builtins(keys, str_keys=True, enc_hook=str), "instructions": body.strip()})
        return
    tell(f"{skill.name} ({skill.source}): {skill.description}\n{row['path']}")
    for warning in skill.warnings:
        warn(warning)
    tell(f"\n{body.strip()}")
    if files := skill.resources():
        tell("\nFiles: " + ", ".join(files))


@app.command()
def validate(
    folders: Annotated[list[str] | None, typer.Argument(metavar="[PATH …]", help="Folders of skills.")] = None,
    json: AsJson = False,
) -> None:
    """Check skills against the specification (agentskills.io): all of this place, or those of these folders.

    Exits 1 where one breaks it.
    """
    given = [Path(folder).absolute() for folder in folders or ()]
    chosen = given or [Path(skill.folder) for skill in _every(configuration()) if skill.source != "bundled"]
    checked = [(str(folder), *_check(folder.parent if folder.name == FILE else folder)) for folder in chosen]
    if json:
        print_json([{"path": path, "problems": problems} for path, problems, _ in checked])
    for path, problems, notes in checked if not json else ():
        tell("\n  ".join((f"{'✗' if problems else '✓'} {path}", *problems, *notes)))
    if any(problems for _, problems, _ in checked):
        raise typer.Exit(1)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and hyphens.")],
    description: Annotated[str, typer.Option(help="What it does, and when to use it.")] = _DESCRIPTION,
    project: Annotated[bool, typer.Option("--project", help="For this project, not for you.")] = False,
) -> None:
    """Begin a skill: a folder with a SKILL.md to fill in."""
    config = configuration()
    base = project_root(current_folder()) / ".agentcli" if project else config.paths.config
    folder = base / "skills" / name
    if problems := list(problems_in({"name": name, "description": description}, name)):
        raise UsageError(f"{problems[0]} (at most {LONGEST_NAME} and {LONGEST_DESCRIPTION:,} characters).")
    if folder.exists():
        raise UsageError(f"{folder} is there already.")
    try:
        folder.mkdir(parents=True)
        quoted = encode(description).decode()  # JSON is YAML, whatever is in the text
        text = _TEMPLATE.format(name=name, description=quoted, title=name.replace("-", " ").capitalize())
        (folder / FILE).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{folder} could not be made: {error.strerror}.") from error
    hint = " It counts once `agentcli config trust` was run here." if project else ""
    tell(f"{folder / FILE}: write down what to do, then /{name} begins with it.{hint}")


def _every(config: Config) -> Catalog:
    """Also those of a project that is not trusted."""
    return find_skills(places(config, with_untrusted=True), _cache(config))


def _cache(config: Config) -> Path:
    return config.paths.cache / "skills"


def _is_active(config: Config, skill: Skill, usable: set[str]) -> bool:
    settings = config.settings.skills
    return settings.enabled and skill.folder in usable and skill.name not in settings.off


def _row(skill: Skill, catalog: Catalog, *, is_active: bool) -> dict[str, Any]:
    hidden = catalog.by_name.get(skill.name)
    warnings = list(skill.warnings)
    if hidden is not None and hidden.folder != skill.folder:
        warnings.append(f"{hidden.folder} stands before it; /{skill.source}:{skill.name} begins with this one")
    path = str(skill.file)
    return _shown(skill.name, skill.description, path, skill.source, is_active=is_active, warnings=warnings)


def _shown(
    name: str, description: str, path: str, source: str, *, is_active: bool, warnings: list[str]
) -> dict[str, Any]:
    about = {"name": name, "description": description, "path": path, "source": source}
    return {**about, "active": is_active, "warnings": warnings}


def _check(folder: Path) -> tuple[list[str], list[str]]:
    """The faults of a skill, and what is no fault but may not work elsewhere."""
    try:
        keys, body = keys_of(folder)
        problems = list(read_skill(folder, "user").warnings)
    except (OSError, ValueError) as error:
        return [getattr(error, "strerror", None) or str(error)], []
    if (lines := len(body.splitlines())) > MAX_LINES:
        problems.append(f"its instructions have {lines} lines: of more than {MAX_LINES} move parts to references/")
    added = ", ".join(added_keys(keys))
    return problems, [f"(not in the specification, so other tools may refuse it: {added})"] if added else []
