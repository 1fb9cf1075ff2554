"""Edits of what git runs are asked about, wherever the repository's configuration says that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.agent.permissions.decide import decide
from agentcli.agent.permissions.facts import find_facts
from agentcli.agent.permissions.rules import Rules
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.tool import ToolRegistry
from agentcli.tools.workspace import Workspace
from tests.conformance.confining import git


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    for name in ("scripts/hooks", "src", "vendor/bare"):
        (work / name).mkdir(parents=True)
    git(work, "init", "-q")
    git(work, "config", "core.hooksPath", "scripts/hooks")
    git(work, "config", "include.path", "../settings.inc")
    git(work / "vendor/bare", "init", "-q", "--bare")
    return work


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("scripts/hooks/pre-commit", "ask"),
        ("settings.inc", "ask"),
        ("vendor/bare/config", "ask"),
        ("vendor/bare/hooks/update", "ask"),
        ("scripts/other", "allow"),
        ("src/settings.inc", "allow"),
        ("vendor/bare/description", "allow"),
    ],
)
def test_an_edit_of_what_git_runs_is_asked_about(work: Path, path: str, outcome: str) -> None:
    sandbox = LocalSandbox([work], environment={"PATH": "/usr/bin:/bin"}, job_folder=work.parent / "jobs")
    tool = ToolRegistry(builtin_tools()).get("file_write")
    for mode in ("acceptEdits", "auto"):
        judged = find_facts(tool, tool.parse({"path": path, "content": "x"}), Workspace(cwd=work, sandbox=sandbox))
        decision = decide(judged, mode, Rules())
        assert decision.outcome == outcome, decision
    judged = find_facts(tool, tool.parse({"path": path, "content": "x"}), Workspace(cwd=work, sandbox=sandbox))
    bypassed = decide(judged, "bypassPermissions", Rules())
    assert bypassed.outcome == "allow"  # this sandbox is told to keep nothing: the profile is danger-full-access
