"""Servers that people use, from npm and PyPI: they are configured as their pages say, and called."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.app.running import Place, Ran, call
from tests.npm import installed

pytestmark = pytest.mark.slow

BYPASS = ("--permission-mode", "bypassPermissions")


@pytest.fixture
def address() -> Iterator[str]:
    """A page on this machine."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>Opening hours</h1><p>Nine to five, but for Sundays.</p>")

        def log_message(self, *given: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def configure(place: Place, **servers: list[str]) -> None:
    entries = {name: {"command": argv[0], "args": argv[1:]} for name, argv in servers.items()}
    (place.folder / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
    assert place.run("config", "trust").code == 0


def stream(place: Place, *calls: tuple[str, dict[str, Any]]) -> tuple[Ran, list[Any]]:
    replies = [{"tool_calls": [call(name, **given)]} for name, given in calls]
    ran = place.run("-p", "go", "-m", place.script(*replies, {"text": "ok"}), "--output-format", "stream-json", *BYPASS)
    assert ran.code == 0, ran.err
    return ran, [line["message"]["content"][0].get("content", "") for line in ran.of("user")]


def test_servers_from_npm(place: Place) -> None:
    programs = installed(
        "@modelcontextprotocol/server-everything@2026.8.31", "@modelcontextprotocol/server-filesystem@2026.8.31"
    )
    node = str(programs / "node")
    (place.folder / "notes.txt").write_text("buy milk\n")
    configure(
        place,
        everything=[node, str(programs / "mcp-server-everything")],
        files=[node, str(programs / "mcp-server-filesystem"), str(place.folder)],
    )
    _, (echoed, structured, long, picture, read, written) = stream(
        place,
        ("mcp__everything__echo", {"message": "hello"}),
        ("mcp__everything__get-structured-content", {"location": "New York"}),
        ("mcp__everything__trigger-long-running-operation", {"duration": 1, "steps": 4}),
        ("mcp__everything__get-tiny-image", {}),
        ("mcp__files__read_text_file", {"path": str(place.folder / "notes.txt")}),
        ("mcp__files__write_file", {"path": str(place.folder / "new.txt"), "content": "new"}),
    )
    assert echoed.startswith("Echo: hello")
    assert json.loads(structured)["conditions"]
    assert "completed" in long
    assert picture[1]["source"]["media_type"] == "image/png"
    assert read.startswith("buy milk")
    assert "new.txt" in written
    assert place.run("undo", "--yes").code == 0
    assert not (place.folder / "new.txt").exists()
    prompts = place.run("-p", "/mcp everything", "-m", place.script({"text": "ok"})).out
    assert "/mcp__everything__" in prompts


def test_servers_from_pypi(place: Place, address: str) -> None:
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "the first one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=place.folder, check=True)
    configure(
        place,
        git=[sys.executable, "-m", "mcp_server_git"],
        time=[sys.executable, "-m", "mcp_server_time"],
        fetch=[sys.executable, "-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"],
    )
    _, (log, now, page) = stream(
        place,
        ("mcp__git__git_log", {"repo_path": str(place.folder)}),
        ("mcp__time__get_current_time", {"timezone": "Europe/Berlin"}),
        ("mcp__fetch__fetch", {"url": address}),
    )
    assert "the first one" in log
    assert "Europe/Berlin" in now
    assert "Nine to five" in page
