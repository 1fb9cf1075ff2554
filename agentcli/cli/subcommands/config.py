"""`agentcli config`: the settings in force, where they come from, and trust in a project's own."""

from __future__ import annotations

from typing import Any

import msgspec

from agentcli.app import Builder
from agentcli.cli.keys import key_lines
from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, run_app
from agentcli.config import to_toml
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.paths import current_folder
from agentcli.project_trust import project_files, trust_project
from agentcli.setup.mcp import server_specs

app = make_app("Look at the settings.")


def run(arguments: list[str]) -> int:
    return run_app(app, "config", arguments)


@app.command()
def show(json: AsJson = False) -> None:
    """The settings that differ from the defaults (with --json: all); what is wrong with them is told."""
    config = configuration()
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    builder.tool_registry()  # what only the parts that use it can judge is told here too
    builder.rules()
    if json:
        print_json(_with_defaults(config.settings))
        return
    for notice in config.notices:
        tell(f"# {notice}")
    for line in key_lines(config):
        tell(f"# {line}")
    tell(to_toml(config.settings).rstrip() or "# Every setting has its default.")


def _with_defaults(value: Any) -> Any:
    """Every setting, also those that have their default."""
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _with_defaults(getattr(value, field.name))
            for field in msgspec.structs.fields(type(value))
        }
    return msgspec.to_builtins(value)


@app.command()
def path(json: AsJson = False) -> None:
    """The files and folders that are used here."""
    config = configuration()
    rows = {
        "user settings": config.paths.user_config,
        "keys": config.paths.credentials,
        "state": config.paths.state,
        "sessions": config.paths.sessions,
        "cache": config.paths.cache,
        **{f"read {number}": file for number, file in enumerate(config.files, 1)},
    }
    if json:
        print_json({name: str(value) for name, value in rows.items()})
        return
    for name, value in rows.items():
        tell(f"{name:<14} {value}")


@app.command()
def trust() -> None:
    """Use this project's own settings from now on, until their files change."""
    config = configuration()
    files = project_files(current_folder())
    if not files:
        tell("This project has no settings of its own (.agentcli/config.toml).")
        return
    for spec in server_specs(msgspec.structs.replace(config, uses_project=True), tell):
        if spec.scope == "project":
            tell(f"The MCP server {spec.name} runs or reaches: {spec.target}")
    trust_project(config.paths, current_folder())
    tell("Trusted as they are now: " + ", ".join(str(file) for file in files))
