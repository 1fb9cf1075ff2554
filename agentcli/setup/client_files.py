"""Defines the seam through which an editor serves its own version of files."""

from __future__ import annotations

from typing import Protocol

from agentcli.agent.interfaces import Checkpoints
from agentcli.tools.sandbox import Sandbox


class ClientFiles(Protocol):
    """Wraps the sandbox and the checkpoints of one session, so that unsaved changes count."""

    def sandbox(self, made: Sandbox) -> Sandbox: ...

    def checkpoints(self, made: Checkpoints) -> Checkpoints: ...
