"""What a one-shot imports: whatever is not needed before the first call stays out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.app.running import Place
from tests.conformance.replies import anthropic_reply
from tests.conformance.servers import anthropic_server

# The modules of ours on the way to an answer without calls, from a scripted model. One that joins them costs each start
# some tenths of a millisecond: it is added here only if each answer needs it.
NEEDED = set(Path(__file__).with_name("start_modules.txt").read_text("utf-8").split())
# Those in place of the scripted provider's, for a model that is reached over HTTP.
NEEDED_FOR_HTTP = {
    "agentcli.llm.connection", "agentcli.llm.streaming", "agentcli.llm.http", "agentcli.llm.providers.anthropic",
    "agentcli.llm.wire.anthropic",
}  # fmt: skip
HEAVY = {
    "PIL", "anthropic", "anyio", "difflib", "email", "html_to_markdown", "http", "httpcore2", "httpx2",
    "importlib.metadata", "importlib.resources", "keyring", "prompt_toolkit", "pydantic", "pygments", "pypdf", "rich",
    "opentelemetry", "psycopg", "python_socks", "redis", "requests", "shlex", "starlette", "tiktoken", "uvicorn",
    "tomlkit", "tomllib", "typer", "urllib.request", "yaml", "zipfile",
}  # fmt: skip

PROGRAM = """
import json, sys
from agentcli.__main__ import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded(place: Place, model: str, **environment: str) -> tuple[set[str], set[str]]:
    """The modules of ours that a one-shot has imported, and heavy ones of others."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-m", model, "-p", "go"],
        cwd=place.folder, env=place.environment | environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ran.stdout == "Hi.\n", ran.stderr
    modules: set[str] = set(json.loads(ran.stderr.splitlines()[-1]))
    return {name for name in modules if name.startswith("agentcli.")}, modules & HEAVY


def test_a_one_shot_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    ours, heavy = loaded(place, place.script({"text": "Hi."}))
    assert (ours - NEEDED, NEEDED - ours, heavy) == (set(), set(), set())


def test_a_request_over_http_needs_one_half_of_an_http_stack(tmp_path: Path) -> None:
    with anthropic_server([anthropic_reply("Hi.")]) as server:
        environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "key"}
        ours, heavy = loaded(Place(tmp_path), "anthropic/claude-sonnet-5-5", **environment)
    assert (ours - NEEDED, heavy) == (NEEDED_FOR_HTTP, set())


def test_the_first_frame_of_the_terminal_needs_no_session() -> None:
    program = (
        "import json, sys, agentcli.cli.main, agentcli.frontends.terminal.console\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('agentcli.')]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    packages = {name.split(".")[1] for name in json.loads(ran.stdout)}
    assert packages == {"agent", "cli", "errors", "frontends", "patterns", "settings", "version"}


def test_a_module_of_the_project_is_not_taken_for_one_of_python(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.folder / "queue.py").write_text("raise SystemExit('imported')\n")
    ran = subprocess.run(
        [sys.executable, "-m", "agentcli", "-m", place.script({"text": "Hi."}), "-p", "go"],
        cwd=place.folder, env=place.environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr) == ("Hi.\n", "")
