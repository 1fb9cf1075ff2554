"""Five MCP servers of twenty tools each, against none in the same run: one-shots, first frames, the first request."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from loopback import ROOT, cpu_of, environment, loopback, median, workspace
from terminal import Place, first_character

from agentcli.tokens import count_tokens

SERVER = ROOT / "tests/mcp_server.py"
WINDOW = 200_000


def configure(home: Path) -> None:
    """Servers whose tools have the long descriptions and schemas that are usual."""
    path = {"type": "string", "description": "The path of the file, relative to the root of the repository. " * 2}
    schema = {"type": "object", "properties": {"path": path, "limit": {"type": "integer"}}, "required": ["path"]}
    text = (
        "Looks up the history of one file and gives the commits that changed it, the newest first, with their authors. "
    )
    with (home / "config.toml").open("w") as file:
        for server in ("github", "tickets", "database", "browser", "search"):
            tools = [{"name": f"look_up_{n}", "description": text * 3, "inputSchema": schema} for n in range(20)]
            (home / f"{server}.json").write_text(json.dumps(tools))
            arguments = ["-I", str(SERVER), "--tools", str(home / f"{server}.json")]
            file.write(f"[mcp_servers.{server}]\ncommand = {sys.executable!r}\nargs = {arguments}\n")


def first_frames(pairs: int = 11) -> None:
    """From exec to a typed character on the screen, while the servers are connected behind it."""
    with workspace() as (repository, plain), tempfile.TemporaryDirectory() as full:
        configure(Path(full))
        places = {home: Place(str(repository), str(home)) for home in (plain, full)}
        walls: dict[str, list[float]] = {plain: [], full: []}
        for number in range(pairs + 2):
            for home in (plain, full) if number % 2 else (full, plain):
                wall, _ = first_character(places[home], places[home].script({"text": "ok"}), at_once=False)
                walls[home] += [wall] if number > 1 else []
    none, some = median(walls[plain]), median(walls[full])
    ratio = median([b / a for a, b in zip(walls[plain], walls[full], strict=True)])
    print(f"first frame    none {none:.3f} s, with 5 servers of 20 tools {some:.3f} s; ratio {ratio:.3f}")


def one_shots(pairs: int = 21) -> None:
    with (
        loopback("hello") as (url, requests),
        workspace() as (repository, plain),
        tempfile.TemporaryDirectory() as full,
    ):
        configure(Path(full))
        ask = [sys.executable, "-m", "agentcli", "-p", "What is 2+2?"]
        subprocess.run(
            ask, cwd=repository, env=environment(url, full), check=True, capture_output=True
        )  # the first one
        runs: dict[str, list[dict[str, float]]] = {plain: [], full: []}
        for number in range(pairs + 2):
            for home in (plain, full) if number % 2 else (full, plain):
                ran = cpu_of(ask, cwd=repository, env=environment(url, home))
                runs[home] += [ran] if number > 1 else []  # the first two fill caches
        bodies = [json.loads(row["body"]) for row in requests()]
    for key in ("cpu", "wall"):
        none, some = (median([run[key] for run in runs[home]]) for home in (plain, full))
        ratio = median([b[key] / a[key] for a, b in zip(runs[plain], runs[full], strict=True)])
        print(f"one-shot {key:<5} none {none:.3f} s, with 5 servers of 20 tools {some:.3f} s; ratio {ratio:.3f}")
    tokens = [prefix_tokens(body) for body in bodies]
    grown = max(tokens) - min(tokens)
    print(f"prefix   {min(tokens):,} tokens without, {grown:,} more with 100 tools: {grown / WINDOW:.2%} of {WINDOW:,}")


def prefix_tokens(body: dict) -> int:
    return count_tokens(json.dumps([body["tools"], body["system"]], separators=(",", ":")), "gpt-4o")


if __name__ == "__main__":
    one_shots()
    first_frames()
