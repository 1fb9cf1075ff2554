"""The built-in tools on a real folder: what the tests of this folder call, and small things they look at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcli.errors import ToolError
from agentcli.infra.sandbox.backends.choosing import Seatbelt
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.command import Profile
from agentcli.tools.tool import ToolContext, ToolOutput, ToolRegistry
from agentcli.tools.workspace import Workspace

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Bench:
    """A workspace `ws` below `folder`, and every tool of it."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.ws = folder / "ws"
        self.ws.mkdir(exist_ok=True)
        self.sandbox = LocalSandbox(
            [self.ws], environment={**ENVIRONMENT, **(environment or {})}, job_folder=folder / "jobs"
        )
        self.workspace = Workspace(cwd=self.ws, sandbox=self.sandbox)
        self.tools = ToolRegistry(builtin_tools())
        self.heard: list[str] = []

    def sandbox_profile(self, profile: Profile) -> None:
        """From now on commands should be confined, but nothing does it."""
        self.sandbox = LocalSandbox(
            [self.ws],
            environment=ENVIRONMENT,
            job_folder=self.folder / "jobs",
            limits=CommandLimits(profile=profile, home=self.folder / "home"),
        )
        self.workspace.sandbox = self.sandbox

    def confine(self) -> None:
        """As `sandbox_profile("workspace-write")` where something confines: what, is not looked at by judging."""
        self.sandbox = LocalSandbox(
            [self.ws],
            environment=ENVIRONMENT,
            job_folder=self.folder / "jobs",
            limits=CommandLimits(profile="workspace-write", home=self.folder / "home"),
            choose=lambda: Seatbelt(self.folder),
        )
        self.workspace.sandbox = self.sandbox

    async def acall(self, name: str, **given: Any) -> ToolOutput:
        """What a call gives, through the front door."""
        tool = self.tools.get(name)
        return await tool.run(tool.parse(given), ToolContext(self.workspace, "id", self.heard.append))

    def call(self, name: str, **given: Any) -> ToolOutput:
        """The output, with its structured part as JSON has it."""
        output = asyncio.run(self.acall(name, **given)).whole()
        return msgspec.structs.replace(output, structured=msgspec.to_builtins(output.structured, enc_hook=str))

    def text(self, name: str, **given: Any) -> str:
        content = self.call(name, **given).content
        assert isinstance(content, str)
        return content

    def fails(self, name: str, **given: Any) -> ToolError:
        """The error of a call that must fail."""
        with pytest.raises(ToolError) as caught:
            self.call(name, **given)
        return caught.value

    def preview(self, name: str, **given: Any) -> str:
        tool = self.tools.get(name)
        return asyncio.run(tool.preview(tool.parse(given), ToolContext(self.workspace, "id")))

    def put(self, name: str, content: str | bytes = "") -> Path:
        """A file of the workspace, with its folders."""
        path = self.ws / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def names(self) -> set[str]:
        """Everything below the workspace."""
        return {str(path.relative_to(self.ws)) for path in self.ws.rglob("*")}


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def until(is_so: Any, seconds: float = 2.0) -> bool:
    """Wait for something to become true; False when it did not in time."""
    for _ in range(round(seconds / 0.01)):
        if is_so():
            return True
        await asyncio.sleep(0.01)
    return bool(is_so())
