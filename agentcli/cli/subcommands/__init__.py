"""`agentcli NAME …`: one module for each group of subcommands; what prompts and sessions need is in `cli/` itself."""

import gc
from typing import Any

from agentcli.errors import UsageError

COMMANDS = {
    "demo": "the tour with a scripted model: no key, no network",
    "sessions": "list, search, export, fork, remove, redact and check stored sessions",
    "tools": "list the tools, or run one by hand",
    "undo": "undo the file changes of the last turn",
    "redo": "reapply the changes that /undo reverted",
    "skills": "skills: list, show, validate, new",
    "hooks": "hooks: list them, try one",
    "mcp": "MCP servers: add, list, remove, log in; be one",
    "blame": "which call of which session wrote each line of a file",
    "usage": "what the stored sessions used and cost",
    "models": "list the models that are known",
    "login": "try a provider's key and keep it",
    "config": "show the settings, trust this project's, import those of other tools",
    "permissions": "explain what would happen to a command",
    "local": "install, check and serve the embedded model",
    "acp": "serve an editor over the Agent Client Protocol",
    "eval": "let a model do tasks, and see how well it did",
    "serve": "serve sessions over HTTP, to programs and to a web page",
    "doctor": "find what is wrong with this installation",
    "completion": "print the script that completes agentcli in your shell",
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
            raise UsageError(f"No command {name!r}; there is {', '.join(COMMANDS)}.")
    return command


def run_command(name: str, arguments: list[str]) -> int:
    """Run a subcommand; gives the exit code. Raises `UserError`."""
    gc.enable()
    command = load_command(name)
    if hasattr(command, "run"):
        return int(command.run(arguments))
    from agentcli.cli.subcommands.shared import run_app

    return run_app(command, name, arguments)
