"""`agentcli plugin` installs, lists, enables and disables plugins, and manages the marketplaces they come from."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_answer
from agentcli.conversation.history import shorten
from agentcli.errors import UsageError, UserError
from agentcli.extensions.hooks.spec import read_hooks
from agentcli.extensions.mcp.config import describe_server, server_specs
from agentcli.extensions.plugins.plugin import Plugin
from agentcli.extensions.plugins.store import PluginStore
from agentcli.extensions.skills.find import find_skill_folders, plugin_skill_folders
from agentcli.extensions.skills.skill import Skill, read_skill, split_frontmatter, tool_rules
from agentcli.extensions.user_commands import SHELL_COMMAND
from agentcli.frontends.printable import escape_hidden
from agentcli.safety.secrets.masking import mask
from agentcli.settings.files import read_small_file
from agentcli.settings.load import Config
from agentcli.settings.trust import folder_digest, is_folder_trusted, trust_folder

plugin_app = make_app(
    "Install, list, enable and disable plugins: bundles of commands, agents, skills, hooks and MCP servers."
)
marketplace_app = make_app("Add, list and update marketplaces: lists of plugins.")
plugin_app.add_typer(marketplace_app, name="marketplace")

Name = Annotated[str, typer.Argument(metavar="NAME[@MARKETPLACE]", help="The plugin's name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Trust it without asking.")]


def _store() -> PluginStore:
    return PluginStore(configuration().paths)


@plugin_app.command("list")
def list_plugins(json: AsJson = False) -> None:
    """List the installed plugins with their parts."""
    store, rows, lines = _store(), [], []
    for name, installed in store.index.plugins.items():
        try:
            plugin = store.read(name)
        except UserError as error:
            warn(f"The plugin {name} cannot be used: {error}")
            continue
        row = plugin_row(plugin, is_enabled=installed.is_enabled)
        counts = ", ".join(f"{kind.replace('_', ' ')}: {len(row[kind])}" for kind in _KINDS if row[kind])
        is_trusted = is_folder_trusted(store.paths, plugin.root)
        changed = "" if is_trusted else "  its files have changed, see agentcli plugin enable"
        mark = "●" if installed.is_enabled else "○"
        lines.append(f"{mark} {name}@{installed.marketplace} {plugin.about('version')}  {counts}{changed}")
        rows.append(row)
    print_answer(rows, "\n".join(lines) or "No plugins are installed. See agentcli plugin install.", as_json=json)


@plugin_app.command()
def install(name: Name, yes: Yes = False) -> None:
    """Install a plugin, or its newest version. Shows what it adds and may run, and asks first."""
    store = _store()
    with store.locked(), store.staged(name) as plugin:
        if store.is_current(plugin):
            echo(f"{plugin.name} {plugin.about('version')} is installed and up to date.")
        elif _confirm_trust(plugin, yes=yes):
            store.install(plugin)
            echo(f"Installed {plugin.name} {plugin.about('version')}. New sessions use it.")


@plugin_app.command()
def update(name: Name, yes: Yes = False) -> None:
    """Update a plugin from its marketplace. Shows it and asks if anything has changed."""
    plugin = _store().read(name)
    install(f"{plugin.name}@{plugin.marketplace}", yes=yes)


def _confirm_trust(plugin: Plugin, *, yes: bool) -> bool:
    """Show what a plugin adds, and return True if the person trusts it. Raises `UsageError` if nobody can be asked."""
    echo(escape_hidden(mask("\n".join(describe_plugin(plugin, configuration())))))
    if not yes and not sys.stdin.isatty():
        raise UsageError("Nothing was changed, because nobody can be asked here. If you trust this plugin, add --yes.")
    return yes or typer.confirm(f"Trust {plugin.name} and use all this?")


@plugin_app.command()
def enable(name: Name, yes: Yes = False) -> None:
    """Enable a plugin. If its files have changed since you trusted them, shows it and asks first."""
    store = _store()
    with store.locked():
        plugin = store.read(name)
        if not is_folder_trusted(store.paths, plugin.root):
            reviewed = folder_digest(plugin.root)
            # Read again after the digest, so that the person is not shown an older version than the one they trust.
            if not _confirm_trust(store.read(name), yes=yes):
                return
            trust_folder(store.paths, plugin.root, reviewed)
    store.switch(name, is_enabled=True)
    echo(f"{plugin.name} is on. New sessions use it.")


@plugin_app.command()
def disable(name: Name) -> None:
    """Disable a plugin; it stays installed."""
    _store().switch(name, is_enabled=False)
    echo(f"{name} is off. Sessions that are open keep it.")


@plugin_app.command()
def remove(name: Name) -> None:
    """Remove a plugin and its files."""
    store = _store()
    with store.locked():
        store.remove(name)
    echo(f"Removed {name}.")


@marketplace_app.command("list")
def list_marketplaces(json: AsJson = False) -> None:
    """List the marketplaces and their plugins."""
    known = _store().index.marketplaces
    rows = [{"name": name, **to_builtins(marketplace)} for name, marketplace in known.items()]
    lines = [f"{name}  {entry.source}\n  {shorten(', '.join(entry.plugins), 1_000)}" for name, entry in known.items()]
    print_answer(rows, "\n".join(lines) or "No marketplaces. See agentcli plugin marketplace add.", as_json=json)


@marketplace_app.command("add")
def add_marketplace(
    source: Annotated[str, typer.Argument(help="The address of a git repository, OWNER/REPO of GitHub, or a folder.")],
) -> None:
    """Add a marketplace, or read it again. Nothing of it is installed or run."""
    store = _store()
    with store.locked():
        name = store.add_marketplace(source)
    names = shorten(", ".join(store.marketplace(name).plugins), 1_000)
    echo(f"{name} has {names}. To install one: agentcli plugin install NAME")


@marketplace_app.command("update")
def update_marketplace(name: Annotated[str, typer.Argument(help="Default: all.")] = "") -> None:
    """Read marketplaces again. Installed plugins stay as they are until `agentcli plugin update`."""
    for each in [name] if name else _store().index.marketplaces:
        add_marketplace(_store().marketplace(each).source)


@marketplace_app.command("remove")
def remove_marketplace(name: Annotated[str, typer.Argument(help="The marketplace's name.")]) -> None:
    """Remove a marketplace from which nothing is installed."""
    store = _store()
    with store.locked():
        store.remove_marketplace(name)
    echo(f"Removed {name}.")


_KINDS = ("commands", "agents", "skills", "hooks", "mcp_servers")


def plugin_row(plugin: Plugin, *, is_enabled: bool, report: Callable[[str], object] = str) -> dict[str, Any]:
    """Return a plugin and the names of its parts for `--json`; `report` gets what cannot be used (`str` ignores it)."""
    return {
        "name": plugin.name,
        "version": plugin.about("version"),
        "marketplace": plugin.marketplace,
        "enabled": is_enabled,
        "commands": [f"/{plugin.name}:{name}" for name in plugin.commands],
        "agents": [f"{plugin.name}:{name}" for name in plugin.agents],
        "skills": [f"{plugin.name}:{skill.name}" for skill in _skills(plugin, report)],
        "hooks": [spec.event for table, file in plugin.hooks for spec in read_hooks(table, file, report)],
        "mcp_servers": list(plugin.servers),
    }


def _skills(plugin: Plugin, report: Callable[[str], object]) -> Iterator[Skill]:
    for folder, _ in (found for place in plugin_skill_folders([plugin]) for found in find_skill_folders(place)):
        try:
            yield read_skill(folder, "plugin")
        except (OSError, ValueError) as error:
            report(f"the skill in {folder}: {error}")


def describe_plugin(plugin: Plugin, config: Config) -> Iterator[str]:
    """Yield lines that list all that a plugin adds, what it may run, and its parts that are not used."""
    yield f"{plugin.name} {plugin.about('version')} from {plugin.marketplace}: {plugin.about('description')}"
    notices = list[str]()
    row = plugin_row(plugin, is_enabled=True, report=notices.append)
    yield from (f"  {kind}: {', '.join(row[kind])}" for kind in ("commands", "agents", "skills") if row[kind])

    def ignore(problem: str) -> None:
        """Drop a problem that `plugin_row` has reported already."""

    for hook in (hook for table, file in plugin.hooks for hook in read_hooks(table, file, ignore)):
        yield f"  hook: {hook.event} runs `{hook.title}`"
        notices += [hook.note] if hook.note else []
    for server in server_specs(config, notices.append, is_strict=True, plugins=[plugin]):
        yield f"  {describe_server(server)}"
    for file in (*plugin.commands.values(), *(skill.file for skill in _skills(plugin, ignore))):
        yield from (f"  {file.relative_to(plugin.root)} {line}" for line in _describe_rights(file))
    yield from (f"  not used: {text}" for text in (*plugin.unused, *notices))
    yield f"  all its files: {plugin.root}"


def _describe_rights(file: Path) -> Iterator[str]:
    """Yield lines on the rights that a custom command or skill gets when the person trusts its plugin.

    They are the tool calls that it allows the model without a question, and the shell commands that it runs itself.
    """
    try:
        keys, body = split_frontmatter(read_small_file(file))
    except (OSError, ValueError):
        return  # a session reports that it cannot be used
    if rules := tool_rules(keys.get("allowed-tools")):
        yield f"allows without asking: {', '.join(rules)}"
    for found in SHELL_COMMAND.finditer(body):
        yield f"runs `{found[1] or found[2]}`, if that is allowed without asking"
