"""`agentcli acp` serves an editor over the Agent Client Protocol, on stdin and stdout."""

import argparse
import asyncio
import os
import sys
from functools import partial

from agentcli.cli.options import SERVER_FLAGS, load_for, server_parser, unshared_stdin
from agentcli.cli.output import echo, set_up_logging, warn
from agentcli.cli.session_opener import open_for_client
from agentcli.errors import UsageError
from agentcli.frontends.acp.agent import AcpAgent
from agentcli.frontends.run_end import interrupt_on_signals
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.models.choice import Models
from agentcli.settings.files import current_folder
from agentcli.settings.load import Config

FLAGS = (*SERVER_FLAGS, (("--login",), {"action": "store_true", "help": "keep a provider's key, and end"}))
_ABOUT = "Serve an editor over the Agent Client Protocol. The editor starts this program: docs/acp.md has its settings."


def run(arguments: list[str]) -> int:
    options = server_parser("agentcli acp", _ABOUT, FLAGS).parse_args(arguments)
    config = load_for(options, current_folder())
    if options.login:
        return _log_in(config)
    set_up_logging(config)
    if sys.stdin is not None and sys.stdin.isatty():
        warn("this speaks JSON-RPC with an editor, which starts it itself. Ctrl-D ends it.")
    return asyncio.run(_serve(options, config))


async def _serve(options: argparse.Namespace, config: Config) -> int:
    """Serve until the editor closes stdin or a signal comes. Stdout is for messages; all else goes to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    try:
        os.dup2(2, 1)
    except OSError:  # stderr is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    store = SqliteSessions(config.paths.sessions, on_notice=warn)  # editors keep stderr as a log
    agent = AcpAgent(partial(open_for_client, options, store, is_server=False, on_notice=warn), store, out=out)
    with interrupt_on_signals(agent.leave) as received:
        await agent.run(unshared_stdin())
    return 128 + received["signal"] if received else 0


def _log_in(config: Config) -> int:
    """Ask for a provider, and let `agentcli login` ask for its key."""
    from agentcli.cli.subcommands import run_command

    echo(f"Providers that take a key: {', '.join(Models(config).keys.takers())}.")
    print("The provider: ", end="", flush=True)
    if not (provider := sys.stdin.readline().strip()):
        raise UsageError("No provider was named.")
    return run_command("login", [provider])
