"""`agentcli skills`: lists, shows, checks and begins skills."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json
from agentcli.conversation.skill_record import FILE
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

MOST_LINES = 500  # of the instructions: what the specification advises
_TEMPLATE = """\
---
name: {name}
description: {description}
---

# {title}

1. …
"""
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
        {
            "name": Path(one.folder).name,
            "description": "",
            "path": f"{one.folder}/{FILE}",
            "source": "",
            "active": False,
            "warnings": [f"left out: {one.why}"],
        }
        for one in catalog.left_out
    ]
    if json:
        print_json(rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        mark = "●" if row["active"] else "○"
        tell(f"{mark} {row['name']:<{width}}  {row['source']:<8} {_cut(row['description'])}")
        for warning in row["warnings"]:
            tell(f"  {'':<{width}}  {warning}")
    if any(not row["active"] for row in rows):
        tell("○: not used. A project's skills count after `agentcli config trust`.")


@app.command()
def show(name: Annotated[str, typer.Argument(help="A skill's name.")], json: AsJson = False) -> None:
    """Show a skill as the model gets it: what it is, its instructions, its files."""
    catalog = _every(configuration())
    skill = SkillRegistry(catalog).get(name)
    keys, body = _readable(Path(skill.folder))
    row = _row(skill, catalog, is_active=True)
    if json:
        print_json({**row, "keys": {k: _plain(v) for k, v in keys.items()}, "instructions": body.strip()})
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
    found = {str(folder): _problems(folder.parent if folder.name == FILE else folder) for folder in chosen}
    if json:
        print_json([{"path": path, "problems": problems} for path, problems in found.items()])
    else:
        for path, problems in found.items():
            tell(f"{'✗' if problems else '✓'} {path}")
            for problem in (*problems, *_notes(Path(path))):
                tell(f"  {problem}")
    if any(found.values()):
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
        text = _TEMPLATE.format(name=name, description=_as_yaml(description), title=name.replace("-", " ").capitalize())
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
    return {
        "name": skill.name,
        "description": skill.description,
        "path": str(skill.file),
        "source": skill.source,
        "active": is_active,
        "warnings": warnings,
    }


def _problems(folder: Path) -> list[str]:
    try:
        _, body = keys_of(folder)
        skill = read_skill(folder, "user")
    except (OSError, ValueError) as error:
        return [getattr(error, "strerror", None) or str(error)]
    found = list(skill.warnings)
    if (lines := len(body.splitlines())) > MOST_LINES:
        found.append(f"its instructions have {lines} lines: of more than {MOST_LINES} move parts to references/")
    return found


def _notes(folder: Path) -> list[str]:
    """What is no fault, but may not work elsewhere."""
    try:
        added = added_keys(keys_of(folder)[0])
    except (OSError, ValueError):
        return []
    return [f"(not in the specification, so other tools may refuse it: {', '.join(added)})"] if added else []


def _readable(folder: Path) -> tuple[dict[str, Any], str]:
    try:
        return keys_of(folder)
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / FILE} could not be read: {error}.") from error


def _plain(value: Any) -> Any:
    """A value of YAML as JSON can have it: dates as text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _as_yaml(text: str) -> str:
    """Text as a YAML value on one line."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'" if any(mark in text for mark in ":#'\"[]{}&*!|>%@`\\") else text


def _cut(text: str, longest: int = 80) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"
