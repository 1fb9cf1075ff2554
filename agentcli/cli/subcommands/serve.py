"""`agentcli serve`: serves sessions over HTTP, to programs and to a web page."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import secrets
import socket
import stat
import sys
from pathlib import Path

from agentcli.agent.result import to_json_line
from agentcli.cli.log_file import set_up_logging
from agentcli.cli.options import SERVER_FLAGS, load_for, server_parser
from agentcli.cli.output import warn
from agentcli.cli.serving import Worker, listen_tcp, serve
from agentcli.errors import UsageError
from agentcli.settings.files import make_private_folder
from agentcli.settings.paths import current_folder
from agentcli.settings.structs import ServeTokenSettings

_MOST_WORKERS, _HIGHEST_PORT = 64, 65_535
FLAGS = (
    *SERVER_FLAGS,
    (("--host",), {"default": "127.0.0.1", "metavar": "ADDRESS", "help": "listen on this address (127.0.0.1)"}),
    (("--port",), {"type": int, "default": 0, "metavar": "N", "help": "listen on this port (any that is free)"}),
    (("--socket",), {"metavar": "PATH", "help": "listen on a unix socket, which only you can use"}),
    (("--token-file",), {"metavar": "FILE", "help": "holds the token; made when it is not there"}),
    (("--workers",), {"type": int, "default": 1, "metavar": "N", "help": "this many processes (1)"}),
)
_ABOUT = "Serve sessions over HTTP, to programs and to a web page. docs/serve.md tells of both."


def run(arguments: list[str]) -> int:
    options = server_parser("agentcli serve", _ABOUT, FLAGS).parse_args(arguments)
    if not 1 <= options.workers <= _MOST_WORKERS:
        raise UsageError(f"--workers is a number from 1 to {_MOST_WORKERS}.")
    if not 0 <= options.port <= _HIGHEST_PORT:
        raise UsageError(f"--port is a number up to {_HIGHEST_PORT}; 0 is any that is free.")
    config = load_for(options, current_folder())
    set_up_logging(config)
    for notice in config.notices:
        warn(notice)
    folder = config.paths.state / "serve"
    make_private_folder(folder)
    token_file = Path(options.token_file).absolute() if options.token_file else folder / "token"
    token = read_or_create_token(token_file)
    listening, told = _listening(options)
    bound = Path(options.socket).lstat() if options.socket else None
    limits = config.settings.serve
    own = ServeTokenSettings(hashlib.sha256(token.encode()).hexdigest(), "", limits.rate_per_minute, limits.budget_usd)
    worker = Worker(options, config, tokens=(own, *limits.tokens.values()), listening=listening)

    def announce() -> None:
        sys.stdout.buffer.write(to_json_line({**told, "token_file": str(token_file)}))
        sys.stdout.flush()
        if sys.stderr.isatty() and "socket" not in told:
            warn(f"the page, with its token: {told['url']}/#token={token}")

    try:
        return serve(worker, options.workers, on_ready=announce)
    finally:
        listening.close()
        with contextlib.suppress(OSError):  # a later server may have put its own there
            if bound is not None and os.path.samestat(bound, Path(options.socket).lstat()):
                Path(options.socket).unlink()


def read_or_create_token(file: Path) -> str:
    """The token in a file, which is made when it is not there. Raises `UsageError`."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"The token file {file} cannot be used: {error.strerror}.") from error
    with os.fdopen(handle, "r+") as opened:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:
            raise UsageError(f"Others may read the token file {file}: chmod 600 {file}")
        token = opened.read(4_096).strip()
        if not token:
            token = secrets.token_urlsafe(32)
            opened.write(f"{token}\n")
    if len(token) < 16 or not token.isascii() or len(token.split()) != 1:
        raise UsageError(f"{file} has no token: one word of at least 16 letters and digits, or nothing.")
    return token


def _listening(options: argparse.Namespace) -> tuple[socket.socket, dict[str, str]]:
    """The socket, and what to tell of it. Raises `UsageError`."""
    if options.socket:
        path = Path(options.socket).absolute()
        return _unix_socket(path), {"url": "http://localhost", "socket": str(path)}
    try:
        opened, url = listen_tcp(options.host, options.port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"Could not listen on {options.host}, port {options.port}: {error}.") from error
    return opened, {"url": url}


def _unix_socket(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and opened.connect_ex(str(path)):
            path.unlink()  # left behind by a server that was killed
            opened.close()
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            opened.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        raise UsageError(f"Could not listen on {path}: {error.strerror or error}.") from error
    return opened
