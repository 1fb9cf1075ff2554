"""`agentcli NAME …`: one module for each group of subcommands; what prompts and sessions need is in `cli/` itself."""

import gc
from typing import Any

from agentcli.errors import UsageError

COMMANDS = {
    "demo": "take a tour with a scripted model: no key, no network",
    "sessions": "list, search, export, fork, remove, redact and check stored sessions",
    "tools": "list the tools, or run one yourself",
    "undo": "undo the file changes of the last turn",
    "redo": "reapply the changes that undo reverted",
    "skills": "list, show, validate and create skills",
    "hooks": "list hooks, or test one",
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
    """Import a subcommand: its typer app (40 ms to import), or the module of one that has a `run` of its own."""
    command: Any
    match name:
        case "demo":
            from agentcli.cli.subcommands.demo import app as command
        case "sessions":
            from agentcli.cli.subcommands.sessions import app as command
        case "tools":
            from agentcli.cli.subcommands.tools import app as command
        case "undo":
            from agentcli.cli.subcommands.undo import undo_command as command
        case "redo":
            from agentcli.cli.subcommands.undo import redo_command as command
        case "skills":
            from agentcli.extensions.subcommands import skills_app as command
        case "hooks":
            from agentcli.extensions.subcommands import hooks_app as command
        case "mcp":
            from agentcli.extensions.mcp import subcommand as command
        case "blame":
            from agentcli.cli.subcommands.undo import blame_command as command
        case "usage":
            from agentcli.cli.subcommands.sessions import usage_command as command
        case "models":
            from agentcli.cli.subcommands.models import app as command
        case "login":
            from agentcli.cli.subcommands.models import login as command
        case "config":
            from agentcli.cli.subcommands.config import app as command
        case "permissions":
            from agentcli.cli.subcommands.tools import permissions_app as command
        case "local":
            from agentcli.cli.subcommands.models import local_app as command
        case "acp":
            from agentcli.cli.subcommands import acp as command
        case "eval":
            from agentcli.cli.subcommands import eval as command
        case "serve":
            from agentcli.cli.subcommands import serve as command
        case "doctor":
            from agentcli.cli.subcommands.doctor import app as command
        case "completion":
            from agentcli.cli import completion as command
        case _:
            raise UsageError(f"Unknown command {name!r}. Choose one of {', '.join(COMMANDS)}.")
    return command


def run_command(name: str, arguments: list[str]) -> int:
    """Run a subcommand; gives the exit code. Raises `UserError`."""
    gc.enable()
    command = load_command(name)
    if hasattr(command, "run"):
        return int(command.run(arguments))
    from agentcli.cli.subcommands.shared import run_app

    return run_app(command, name, arguments)
