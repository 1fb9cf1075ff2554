"""The MCP server of `mcp_server.py` over Streamable HTTP, with a login by OAuth where it is wanted."""

from __future__ import annotations

import argparse
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.mcp_server import Refused, answer


class Server(ThreadingHTTPServer):
    """`tokens` are those that count now; `asked` are the paths and methods it was asked for."""

    def __init__(self, *, wants_login: bool, lasts_s: int, tools: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wants_login = wants_login
        self.lasts_s = lasts_s
        self.options = argparse.Namespace(tools=tools, page=50, instructions="")
        self.tokens: set[str] = set()
        self.refreshes: set[str] = set()
        self.asked: list[str] = []
        self.headers_seen: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def http_server(*, wants_login: bool = False, lasts_s: int = 3600, tools: str = "") -> Iterator[Server]:
    server = Server(wants_login=wants_login, lasts_s=lasts_s, tools=tools)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        self.server.asked.append(f"GET {target.path}")
        base = self.server.url
        match target.path:
            case "/.well-known/oauth-protected-resource/mcp" if self.server.wants_login:
                self.reply({"resource": f"{base}/mcp", "authorization_servers": [base]})
            case "/.well-known/oauth-authorization-server" if self.server.wants_login:
                self.reply(
                    {
                        "issuer": base,
                        **{f"{name}_endpoint": f"{base}/{name}" for name in ("authorization", "token", "registration")},
                        "response_types_supported": ["code"],
                        "code_challenge_methods_supported": ["S256"],
                        "token_endpoint_auth_methods_supported": ["none"],
                    }
                )
            case "/authorization":
                given = {name: values[0] for name, values in parse_qs(target.query).items()}
                answered = urlencode({"code": "the-code", "state": given["state"]})
                self.send_response(302)
                self.send_header("Location", f"{given['redirect_uri']}?{answered}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            case _:
                self.reply({}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if path == "/registration":
            self.server.asked.append("POST /registration")
            return self.reply({**json.loads(body), "client_id": "the-client"}, 201)
        if path == "/token":
            given = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            self.server.asked.append(f"POST /token {given['grant_type']}")
            return self.give_token(given)
        self.server.headers_seen = dict(self.headers)
        if self.server.wants_login and self.headers.get("Authorization", "")[7:] not in self.server.tokens:
            found = f'Bearer resource_metadata="{self.server.url}/.well-known/oauth-protected-resource/mcp"'
            return self.reply({}, 401, {"WWW-Authenticate": found})
        message = json.loads(body)
        self.server.asked.append(message.get("method", ""))
        if "id" not in message:
            return self.reply(None, 202)
        try:
            result = {"result": answer(message["method"], message.get("params") or {}, self.server.options)}
        except Refused as error:
            result = {"error": {"code": error.code, "message": str(error)}}
        return self.reply({"jsonrpc": "2.0", "id": message["id"], **result})

    def give_token(self, given: dict[str, str]) -> None:
        is_right = given.get("code") == "the-code" or given.get("refresh_token") in self.server.refreshes
        if not is_right:
            return self.reply({"error": "invalid_grant"}, 400)
        token, refresh = secrets.token_hex(), secrets.token_hex()
        self.server.tokens.add(token)
        self.server.refreshes.add(refresh)
        lasts = {"expires_in": self.server.lasts_s}
        return self.reply({"access_token": token, "token_type": "Bearer", "refresh_token": refresh, **lasts})

    def reply(self, body: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *given: object) -> None: ...
