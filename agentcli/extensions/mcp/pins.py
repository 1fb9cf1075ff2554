"""Keeps what MCP servers offered when they were last approved, a file each in the state folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentcli.agent.program_trust import ProgramTrust
from agentcli.errors import StorageError
from agentcli.extensions.mcp.client import Offer, ServerSpec
from agentcli.extensions.mcp.names import plain
from agentcli.settings.files import make_private_folder, replace_file


class FilePins:
    """Implements `Pins`. A project's server is pinned for that project, others for all folders.

    `programs` has the files of the workspace that servers are started from.
    """

    def __init__(self, folder: Path, project: Path, programs: ProgramTrust) -> None:
        self._programs = programs
        self._folder = folder
        self._project = project

    def load(self, spec: ServerSpec) -> Offer | None:
        """None where none is kept. Of a file that cannot be read nothing counts as approved."""
        try:
            return msgspec.json.decode(self._file(spec).read_bytes(), type=Offer)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError):
            return Offer()

    def save(self, spec: ServerSpec, offer: Offer) -> None:
        file = self._file(spec)
        try:
            for folder in (self._folder.parent, self._folder):
                make_private_folder(folder)
            replace_file(file, msgspec.json.encode(offer))
        except OSError as error:
            raise StorageError(f"What the MCP server {spec.name} offers could not be kept: {error}.") from error

    def changed_programs(self, spec: ServerSpec) -> Sequence[Path]:
        return self._programs.changed(spec.start_command) if spec.start_command else ()

    def accept_programs(self, spec: ServerSpec) -> None:
        if spec.start_command:
            self._programs.accept(spec.start_command)

    def _file(self, spec: ServerSpec) -> Path:
        where = str(self._project) if spec.scope in ("project", "local") else ""
        digest = hashlib.sha256(f"{spec.fingerprint} {where}".encode()).hexdigest()
        return self._folder / f"{plain(spec.name)[:40]}-{digest[:16]}.json"
