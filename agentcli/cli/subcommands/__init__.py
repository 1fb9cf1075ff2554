"""`agentcli NAME …`: one module for each group of subcommands. Code for prompts and sessions is in `cli/` itself."""

import gc
from typing import Any

COMMANDS = {
    "demo": "take a tour with a scripted model: no key, no network",
    "sessions": "list, search, export, fork, remove, redact and check stored sessions",
    "tools": "list the tools, or run one yourself",
    "undo": "undo the file changes of the last turn",
    "redo": "reapply the changes that undo reverted",
    "skills": "list, show, validate and create skills",
    "hooks": "list hooks, or test one",
    "plugin": "install, enable and update plugins, and add marketplaces",
    "mcp": "add, list, remove and log in to MCP servers, or serve as one",
    "blame": "show which session and tool call wrote each line of a file",
    "usage": "show the tokens and costs of the stored sessions",
    "models": "list the known models",
    "login": "test and save a provider's API key",
    "config": "show and change settings, trust this project's, import other tools'",
    "permissions": "explain whether a command would run",
    "local": "install, check and serve the embedded model",
    "acp": "connect to an editor over the Agent Client Protocol",
    "eval": "run a model on tasks and measure how well it does",
    "serve": "serve sessions over HTTP, for programs and a web page",
    "doctor": "check this installation for problems",
    "completion": "print a shell completion script",
}


def load_command(name: str) -> Any:
    """Import a subcommand: its typer app, `NAME_app` (40 ms to import), or a module with its own `run`."""
    module: Any
    match name:
        case "demo":
            from agentcli.cli.subcommands import demo as module
        case "sessions" | "usage":
            from agentcli.cli.subcommands import sessions as module
        case "tools" | "permissions":
            from agentcli.cli.subcommands import tools as module
        case "undo" | "redo" | "blame":
            from agentcli.cli.subcommands import undo as module
        case "skills" | "hooks":
            from agentcli.extensions import subcommands as module
        case "plugin":
            from agentcli.extensions.plugins import subcommand as module
        case "mcp":
            from agentcli.extensions.mcp import subcommand as module
        case "models" | "login" | "local":
            from agentcli.cli.subcommands import models as module
        case "config":
            from agentcli.cli.subcommands import config as module
        case "acp":
            from agentcli.cli.subcommands import acp as module
        case "eval":
            from agentcli.cli.subcommands import eval as module
        case "serve":
            from agentcli.cli.subcommands import serve as module
        case "doctor":
            from agentcli.cli.subcommands import doctor as module
        case "completion":
            from agentcli.cli import completion as module
    return module if hasattr(module, "run") else getattr(module, f"{name}_app")


def run_command(name: str, arguments: list[str]) -> int:
    """Run a subcommand and return the exit code. Raises `UserError`."""
    gc.enable()  # it is off while the program starts
    command = load_command(name)
    if hasattr(command, "run"):
        return int(command.run(arguments))
    from agentcli.cli.subcommands.shared import run_app

    return run_app(command, name, arguments)
