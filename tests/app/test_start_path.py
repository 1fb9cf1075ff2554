"""What a one-shot imports: whatever is not needed before the first call stays out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.app.running import Place

# Packages of ours on the way to an answer without calls. One that joins them costs every start some milliseconds.
NEEDED = {
    "agent", "agent.calls", "agent.commands", "agent.permissions", "cli", "conversation", "frontends", "infra",
    "infra.sessions", "llm", "llm.providers", "llm.wire", "safety", "safety.addresses", "safety.commands",
    "safety.paths", "tools", "tools.builtin", "tools.web",
}  # fmt: skip
HEAVY = {
    "PIL", "anthropic", "html_to_markdown", "httpx2", "keyring", "prompt_toolkit", "pydantic", "pygments", "pypdf",
    "rich", "tiktoken", "tomlkit", "typer", "yaml",
}  # fmt: skip

PROGRAM = """
import json, sys
from agentcli.__main__ import main
try:
    main()
finally:
    packages = sorted(name for name, module in sys.modules.items() if hasattr(module, "__path__"))
    print(json.dumps(packages), file=sys.stderr)
"""


def test_a_one_shot_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    model = place.script({"text": "Hi."})
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-m", model, "-p", "go"],
        cwd=place.folder, env=place.environment, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ran.stdout == "Hi.\n", ran.stderr
    packages = set(json.loads(ran.stderr.splitlines()[-1]))
    assert {name.removeprefix("agentcli.") for name in packages if name.startswith("agentcli.")} == NEEDED
    assert not packages & HEAVY
