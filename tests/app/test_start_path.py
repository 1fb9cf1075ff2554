"""What a one-shot imports: whatever is not needed before the first call stays out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.app.running import Place
from tests.conformance.replies import anthropic_reply
from tests.conformance.servers import anthropic_server

# Packages of ours on the way to an answer without calls. One that joins them costs every start some milliseconds.
NEEDED = {
    "agent", "agent.accounting", "agent.calls", "agent.commands", "agent.context", "agent.permissions",
    "agent.requests", "cli", "cli.subcommands", "conversation", "conversation.evidence", "extensions",
    "extensions.hooks", "extensions.skills", "extensions.subagents", "frontends", "infra", "infra.sessions",
    "llm", "llm.providers", "llm.tokens", "llm.wire",
    "models", "safety", "safety.addresses", "safety.commands", "safety.paths", "settings", "setup",
    "tools", "tools.builtin", "tools.text", "tools.web",
}  # fmt: skip
HEAVY = {
    "PIL", "anthropic", "anyio", "email", "html_to_markdown", "http", "httpcore2", "httpx2", "importlib.metadata",
    "importlib.resources", "keyring", "prompt_toolkit", "pydantic", "pygments", "pypdf", "rich", "tiktoken",
    "opentelemetry", "psycopg", "python_socks", "redis", "requests", "starlette", "uvicorn",
    "tomlkit", "typer", "urllib.request", "yaml", "zipfile",
}  # fmt: skip

PROGRAM = """
import json, sys
from agentcli.__main__ import main
try:
    main()
finally:
    print(json.dumps({name: hasattr(module, "__path__") for name, module in sys.modules.items()}), file=sys.stderr)
"""


def loaded(place: Place, model: str, **environment: str) -> tuple[set[str], set[str]]:
    """Packages of ours that a one-shot has imported, and heavy modules of others."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-m", model, "-p", "go"],
        cwd=place.folder, env=place.environment | environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ran.stdout == "Hi.\n", ran.stderr
    modules: dict[str, bool] = json.loads(ran.stderr.splitlines()[-1])
    ours = {name.removeprefix("agentcli.") for name, is_package in modules.items() if is_package}
    return {name for name in ours if f"agentcli.{name}" in modules}, modules.keys() & HEAVY


def test_a_one_shot_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert loaded(place, place.script({"text": "Hi."})) == (NEEDED, set())


def test_a_request_over_http_needs_one_half_of_an_http_stack(tmp_path: Path) -> None:
    with anthropic_server([anthropic_reply("Hi.")]) as server:
        environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "key"}
        assert loaded(Place(tmp_path), "anthropic/claude-sonnet-5-5", **environment) == (NEEDED, set())
