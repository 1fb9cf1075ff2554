"""`agentcli config` shows and changes settings, trusts a project's settings, and imports those of other tools."""

import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import tomli_w
import tomlkit
import typer

from agentcli.app import Builder
from agentcli.cli.import_draft import Draft
from agentcli.cli.importing import PROGRAMS, draft_personal_imports, draft_project_imports
from agentcli.cli.options import claude_settings_notice
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_answer, print_json
from agentcli.errors import ConfigError, UsageError, did_you_mean
from agentcli.extensions.hooks.spec import HookSpec
from agentcli.extensions.mcp.config import describe_server, server_specs
from agentcli.extensions.programs import Hooks, Plugins, WorkspacePrograms
from agentcli.frontends.printable import escape_hidden
from agentcli.frontends.terminal.text.fragments import Fragment, first_rows, plain, rows_of
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.safety.secrets.masking import mask
from agentcli.settings import trust as project_trust
from agentcli.settings import write
from agentcli.settings.check import setting_type
from agentcli.settings.files import current_folder, find_paths, markdown_files, project_root, replace_file
from agentcli.settings.load import Config, load_config, nested, personal_keys, project_refusal
from agentcli.setup.options import check_hosts

config_app = make_app("Show and change settings.")


@config_app.command()
def show(json: AsJson = False) -> None:
    """Show the settings that differ from the defaults (with --json: all), and report mistakes in them."""
    config = configuration()
    builder = _check_settings(config)
    if json:  # does not mention keys, so it works even if the file with keys is unusable
        print_json(write.without_secrets(msgspec.to_builtins(config.settings), mask))
        return
    comments = [f"# {line}" for line in (*config.notices, *builder.models.keys.describe_all())]
    echo("\n".join((*comments, mask(write.readable_settings(config.settings)))))


def _check_settings(config: Config) -> Builder:
    """Check the settings that are checked only where they are used: tools, rules and hosts. Raises `ConfigError`."""
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    builder.tool_registry()
    builder.rules()
    check_hosts(config)
    return builder


Key = Annotated[str, typer.Argument(help="SECTION.KEY, such as retry.max. Put names with dots in quotes.")]


@config_app.command()
def get(key: Key, json: AsJson = False) -> None:
    """Print the value of a setting (with --json, also where it comes from). Secrets are masked."""
    parts = write.key_parts(key)
    setting_type(parts)  # only for the error about a setting that does not exist
    config = configuration()
    value = write.without_secrets(msgspec.to_builtins(config.settings), mask)
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            raise UsageError(f"{key} is not set.")
        value = value[part]
    match value:
        case dict():
            text = write.to_toml(value).rstrip()
        case str() | None:
            text = value or ""
        case _:
            text = tomlkit.item(value).as_string()
    layer = config.layer_of(".".join(parts))
    print_answer({"key": key, "value": value, "source": layer.source if layer else "default"}, text, as_json=json)


@config_app.command("set")
def set_setting(
    key: Key,
    value: Annotated[str, typer.Argument(help='A TOML value: 3, true, ["a", "b"]. Strings need no quotes.')],
    scope: Annotated[
        Literal["user", "project", "local"],
        typer.Option(help="Your config.toml, the project's .agentcli/config.toml, or its config.local.toml."),
    ] = "user",
) -> None:
    """Set a setting in a config.toml and keep its comments and layout. An invalid value changes nothing."""
    parts, cwd, paths = write.key_parts(key), current_folder(), find_paths(os.environ.get("AGENTCLI_HOME"))
    parsed = write.parse_value(value, parts)
    file = paths.user_config if scope == "user" else project_root(cwd) / project_trust.PROJECT_FILES[scope]
    if scope != "user":  # a project must not set personal settings, and its file must be inside of it
        if personal := personal_keys(nested(parts, parsed)):
            raise UsageError(project_refusal(personal[0], paths))
        _require_within(file, project_root(cwd))
    text = write.with_setting(file, parts, parsed)
    # Check the new text in place of the file, together with all other settings.
    _check_settings(load_config(cwd, flags=tomllib.loads(text), caller=str(file), ignored_file=file))
    write.write_settings(file, text, mode=0o600 if scope == "user" else 0o644)
    note = " To use it, run agentcli config trust."
    if scope == "user":
        note = write.describe_override(configuration(), ".".join(parts), file)
    echo(f"Set {key} in {file}.{note}")


@config_app.command()
def path(json: AsJson = False) -> None:
    """Show the files and folders in use."""
    config = configuration()
    rows = {
        "user settings": config.paths.user_config,
        "keys": config.paths.credentials,
        "state": config.paths.state,
        "sessions": config.paths.sessions,
        "cache": config.paths.cache,
        **{f"read {number}": file for number, file in enumerate(config.files, 1)},
    }
    text = "\n".join(f"{name:<14} {value}" for name, value in rows.items())
    print_answer({name: str(value) for name, value in rows.items()}, text, as_json=json)


class ProjectReview(msgspec.Struct, frozen=True):
    """A project's own files, for the person to review."""

    text: str  # the settings, programs and rules that they would add
    names: str  # the files, separated by commas
    digests: dict[str, str]  # by file


NOTHING_TO_TRUST = "This project has no settings of its own (.agentcli/config.toml), so there is nothing to trust."


def review_project(config: Config, on_notice: Callable[[str], None]) -> ProjectReview | None:
    """Return what the person approves by trusting the project's files; None without any. Raises `ConfigError`."""
    if notice := claude_settings_notice(config.cwd):
        on_notice(notice)
    if not (files := project_trust.project_files(config.cwd)):
        return None
    file_digests = project_trust.project_digests(config.cwd)  # the trust ends once a digest changes
    trusted = load_config(config.cwd, trust=True)  # as if the person had trusted the project already
    servers = server_specs(trusted, on_notice)  # the person's own, too
    programs = WorkspacePrograms(trusted)
    hooks = list[HookSpec]()
    try:  # reading the hooks adds the programs they run to `programs`
        hooks = Hooks(Plugins(config=trusted, on_notice=on_notice), programs).specs
    except ConfigError as error:  # a broken file runs nothing, and must be trusted again once it is repaired
        on_notice(str(error))
    for server in servers:
        programs.add_server(server)
    program_digests = programs.pins.digests_to_trust()  # of what hooks and servers run; "" for a missing file
    texts = [
        f"# {file}\n{mask(file.read_text(errors='replace'))}"
        for file in files
        if file.suffix in (".toml", ".json") and file.name != project_trust.MCP_FILE  # servers are described below
    ]
    project_servers = [server for server in servers if server.is_of_project]
    for server in project_servers:
        note = " (replaces your own)" if server.name in config.settings.mcp_servers else ""
        texts.append(f"{describe_server(server)}{note}")
    texts += _describe_additions(config, trusted, files, hooks, [server.name for server in project_servers])
    names = ", ".join([*map(str, files), *sorted(path for path, digest in program_digests.items() if digest)])
    # `escape_hidden` makes hidden characters visible: nothing in the files may look different from what it is.
    text = escape_hidden("\n".join((*texts, f"The project's files: {names}")))
    return ProjectReview(text, names, file_digests | program_digests)


def _describe_additions(
    config: Config, trusted: Config, files: Sequence[Path], hooks: Sequence[HookSpec], servers: Sequence[str]
) -> Iterator[str]:
    """Yield lines on what trusting a project adds, for the review, which shows its files with settings in full."""
    folders = project_trust.project_command_folders(config.cwd)
    commands = [file.relative_to(folder).with_suffix("").parts for folder in folders for file in markdown_files(folder)]
    agent_folders = project_trust.definition_folders(config.cwd, project_trust.AGENT_FOLDERS)
    style_folders = project_trust.definition_folders(config.cwd, project_trust.STYLE_FOLDERS)
    own, new = config.settings.permissions, trusted.settings.permissions
    additions = {
        "commands": [f"/{':'.join(parts)}" for parts in commands],
        "skills": [file.parent.name for file in files if file.name == project_trust.SKILL_FILE],
        "subagents": [file.stem for folder in agent_folders for file in markdown_files(folder)],
        "output styles": [file.stem for folder in style_folders for file in markdown_files(folder)],
        "hooks": [f"{hook.event} runs `{mask(hook.title)}`" for hook in hooks if Path(hook.source) in files],
        "MCP servers": servers,
        "allowed without asking": [rule for rule in new.allow if rule not in own.allow],
        "folders": [folder for folder in new.additional_directories if folder not in own.additional_directories],
    }
    lines = [f"  {kind}: {', '.join(names)}" for kind, names in additions.items() if names]
    yield from ["Trusting them adds:", *lines] if lines else ()


def trust_reviewed(config: Config, review: ProjectReview) -> str:
    """Trust a project's files; return a confirmation. Raises `UsageError` if they changed since the review."""
    now = review_project(config, lambda notice: None)
    if now is None or now.digests != review.digests:
        raise UsageError("The project's files changed in the meantime. Review them again before you trust them.")
    project_trust.remember_trust(config.paths, review.digests)
    return f"Trusted in their current state: {review.names}"


@config_app.command()
def trust(yes: Annotated[bool, typer.Option("--yes", help="Trust them without asking.")] = False) -> None:
    """Trust this project's own settings until their files change. In a terminal, shows them and asks first."""
    config = configuration()
    review = review_project(config, echo)
    if review is None:
        echo(NOTHING_TO_TRUST)
        return
    if yes or not sys.stdin.isatty():
        echo(review.text)
    elif not _show_by_pages(review.text) or not typer.confirm("Trust these files as they are now?"):
        return
    echo(trust_reviewed(config, review))


def _show_by_pages(text: str) -> bool:
    """Show a text page by page; return False if the person stops before the end."""
    unread: list[Fragment] = [("", f"{text}\n")]
    while unread:
        columns, lines = shutil.get_terminal_size()
        page, unread = first_rows(unread, columns, max(1, lines - 2))  # the question needs two rows
        echo(plain(page).removesuffix("\n"))
        if unread and not typer.confirm(f"Show the rest ({rows_of(unread, columns):,} more rows)?", default=True):
            return False
    return True


@config_app.command("import")
def import_settings(
    tool: Annotated[str, typer.Argument(help=f"One of {', '.join(PROGRAMS)}. Default: all.")] = "",
    project: Annotated[bool, typer.Option("--project", help="Write this project's settings, not yours.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write them without asking.")] = False,
) -> None:
    """Import settings and commands of other tools. Shows what it would write and skip, and asks first."""
    if tool and tool not in PROGRAMS:
        raise UsageError(f"Unknown tool {tool!r}{did_you_mean(tool, PROGRAMS)}. Choose one of {', '.join(PROGRAMS)}.")
    config, programs = configuration(), (tool,) if tool else PROGRAMS
    drafts = draft_project_imports(config, programs) if project else [draft_personal_imports(config, programs)]
    plans = [(draft, write.merge_settings(draft.target, draft.values)) for draft in drafts]
    for draft, plan in plans:
        _show_plan(draft, plan)
    if not any(plan.added or draft.commands for draft, plan in plans):
        echo("There is nothing to import.")
    elif not (yes or sys.stdin.isatty()):
        echo("Nothing was written. To write it: agentcli config import --yes")
    elif yes or typer.confirm("Write these settings?"):
        for draft, plan in plans:
            _write_plan(draft, plan)


def _show_plan(draft: Draft, plan: write.MergedFile) -> None:
    if plan.added:
        echo(f"# {draft.target}\n{tomli_w.dumps(plan.added)}")
    if draft.commands:
        echo("\n".join(("Commands:", *(f"  {file}" for file in draft.commands), "")))
    left_out = [*draft.left_out, *(f"{key}: {draft.target} already sets it." for key in plan.conflicts)]
    if left_out:
        echo("\n".join(("Skipped:", *(f"  {line}" for line in left_out), "")))


def _write_plan(draft: Draft, plan: write.MergedFile) -> None:
    if draft.is_project:
        for file in (draft.target, *draft.commands):
            _require_within(file, project_root(current_folder()))
    for file, text in draft.commands.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode(), mode=0o644)
        echo(f"Written: {file}")
    if plan.added:
        write.write_settings(draft.target, plan.text, mode=0o644 if draft.is_project else 0o600)
        next_step = " (to use it, run agentcli config trust)" if draft.is_project else ""
        echo(f"Written: {draft.target}{next_step}")


def _require_within(file: Path, root: Path) -> None:
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root)):
        raise UsageError(f"{file} is outside this project. Nothing was written there.")
