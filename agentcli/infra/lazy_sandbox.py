"""Makes a session's sandbox when it is first used: importing it takes 20 ms, and many prompts need no call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentcli.tools.command import BackgroundJob
    from agentcli.tools.sandbox import Sandbox


class LazySandbox:
    """Stands for the sandbox that `make` gives. Until that is made there are no jobs, and nothing to close."""

    def __init__(self, make: Callable[[], Sandbox]) -> None:
        self._make = make
        self._made: Sandbox | None = None
        self._lock = Lock()

    def load(self) -> Sandbox:
        """Make it now; may be called in a thread, while the model writes its first call."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._made.jobs() if self._made is not None else ()

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()
