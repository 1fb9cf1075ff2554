"""Starts an HTTP server in this process, using the packages of the extra `server`."""

import socket
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from agentcli.errors import UsageError

if TYPE_CHECKING:
    import uvicorn

_GRACE_S = 1  # for answers in progress when the server ends
_KEEP_ALIVE_S = 75  # before an idle connection is closed


def import_server() -> None:
    """Import the server's modules, which takes a while. Raises `UsageError` if one of their packages is missing."""
    try:
        import segno  # noqa: F401 - to detect now that it is missing
        import uvicorn  # noqa: F401 - for the same reason

        import agentcli.frontends.http.routes  # noqa: F401 - for the same reason
    except ImportError as error:
        raise UsageError(
            f"The server needs an extra ({error.name} is missing): ./install.sh --extras server, or pip install "
            "'agentcli[server]'."
        ) from error


def listen_tcp(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a socket bound to an address, and its URL. Raises `OSError`, and `OverflowError` for too large a port."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    return listener, f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def http_server(app: Any) -> "uvicorn.Server":
    """Return a server for an ASGI application; the caller handles signals."""
    import uvicorn

    waits: dict[str, Any] = {"timeout_keep_alive": _KEEP_ALIVE_S, "timeout_graceful_shutdown": _GRACE_S}
    config = uvicorn.Config(app, log_config=None, access_log=False, proxy_headers=False, server_header=False, **waits)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[assignment,method-assign]
    return server
