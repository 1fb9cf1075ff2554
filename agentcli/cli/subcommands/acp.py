"""`agentcli acp` serves an editor over the Agent Client Protocol, on stdin and stdout."""

import argparse
import asyncio
import os
import sys
from functools import partial

from agentcli.cli.options import SERVER_FLAGS, config_for, make_flag_parser, unshared_stdin
from agentcli.cli.output import echo, set_up_logging, warn
from agentcli.cli.session_opener import open_for_client
from agentcli.errors import UsageError
from agentcli.frontends.acp.agent import AcpAgent
from agentcli.frontends.run_end import interrupt_on_signals
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.models.choice import Models
from agentcli.settings.files import current_folder
from agentcli.settings.load import Config

FLAGS = (*SERVER_FLAGS, (("--login",), {"action": "store_true", "help": "save a provider's API key and exit"}))
_ABOUT = "Connect to an editor over the Agent Client Protocol. The editor starts this program; see docs/acp.md."


def run(arguments: list[str]) -> int:
    options = make_flag_parser("agentcli acp", _ABOUT, FLAGS).parse_args(arguments)
    config = config_for(options, current_folder())
    if options.login:
        from agentcli.cli.subcommands import run_command

        echo(f"Providers that use an API key: {', '.join(Models(config).keys.providers_that_take_keys())}.")
        print("Provider: ", end="", flush=True)
        if not (provider := sys.stdin.readline().strip()):
            raise UsageError("Enter the name of a provider.")
        return run_command("login", [provider])
    set_up_logging(config)
    if sys.stdin is not None and sys.stdin.isatty():
        warn("This command speaks JSON-RPC with an editor, which starts it. Press Ctrl-D to exit.")
    return asyncio.run(_serve(options, config))


async def _check_key(options: argparse.Namespace) -> None:
    """Raise `NoModel` or `NoKey` if no model can be used. Keys are read again, because a login may have saved one."""
    models = Models(await asyncio.to_thread(config_for, options, current_folder()))
    name = await models.default()
    if not any(map(models.keys.can_use, models.keys.providers_that_take_keys())):  # any key is enough to open sessions
        models.require_key(name)


async def _serve(options: argparse.Namespace, config: Config) -> int:
    """Serve until the editor closes stdin or a signal arrives. Only messages of the protocol go to stdout."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)  # anything else that prints to stdout now reaches stderr
    store = SqliteSessions(config.paths.sessions, on_notice=warn)  # editors keep stderr as a log
    open_session = partial(open_for_client, options, store, is_server=False, on_notice=warn)
    agent = AcpAgent(open_session, store, partial(_check_key, options), out=out)
    with interrupt_on_signals(agent.leave) as received:
        await agent.run(unshared_stdin())
    return 128 + received["signal"] if received else 0
