"""The subject of the doctor's checks, and their findings."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct, structs

from agentcli.app import Builder
from agentcli.errors import ConfigError
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.models.choice import Models
from agentcli.settings.load import Config
from agentcli.settings.structs import BudgetSettings, MCPSettings, ProviderSettings

Status = Literal["ok", "warning", "problem"]
_MAX_RUN_S = 3.0


class Finding(Struct, frozen=True):
    """One finding; `mend` says what to do about a warning (works less well) or a problem (does not work)."""

    check: str
    status: Status
    message: str = ""
    mend: str = ""


Result = tuple[Status, str, str]  # a finding without the name of its check
Check = Callable[["Subject"], Iterable[Result]]


@dataclass
class Subject:
    """An installation. `unread` is why its settings could not be read; `config` holds the defaults then."""

    config: Config
    unread: ConfigError | None = None

    @cached_property
    def models(self) -> Models:
        """Raises `ConfigError`."""
        return Models(self.config)

    def builder(self, on_notice: Callable[[str], None], **changes: Any) -> Builder:
        """Return a builder without models and MCP servers, because checks of their own find mistakes in those."""
        plain: dict[str, Any] = {
            "provider": ProviderSettings(),
            "budgets": BudgetSettings(),
            "providers": {},
            "models": {},
        }
        settings = structs.replace(self.config.settings, mcp=MCPSettings(enabled=False), **plain, **changes)
        return Builder(structs.replace(self.config, settings=settings), store=MemorySessions(), on_notice=on_notice)

    def program(self, name: str) -> str:
        """Return the place of a program on the PATH; empty where it is not there."""
        return shutil.which(name, path=self.config.environment.get("PATH")) or ""


def version_of(program: str) -> str:
    """Return the first line of `PROGRAM --version`; empty where it does not run."""
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_MAX_RUN_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").partition("\n")[0].strip()
