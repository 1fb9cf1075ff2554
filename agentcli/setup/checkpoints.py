"""Makes what records the changes of a session's calls, once something is to be recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentcli.agent.interfaces import Checkpoints
from agentcli.settings.load import Config

if TYPE_CHECKING:
    from agentcli.infra.checkpoints.recorder import Recorder


class LazyCheckpoints:
    """Stands for the recorder that `make` gives: importing it takes 20 ms, and many prompts change nothing."""

    def __init__(self, make: Callable[[], Recorder]) -> None:
        self._make = make
        self._made: Recorder | None = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = self._make()
        return getattr(self._made, name)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()


def make_checkpoints(
    config: Config, session_id: str, roots: Callable[[], Sequence[Path]], *, is_lasting: bool
) -> Checkpoints | None:
    """What records the calls of a session in the workspace of these `roots`; None where the settings want none.

    Of a session that is not lasting nothing stays on the disk.
    """
    if not config.settings.checkpoints.enabled:
        return None

    def make() -> Recorder:
        settings, state = config.settings.checkpoints, config.paths.state
        scratch, folder, private = state / "tries", state / "checkpoints", None
        if not is_lasting:
            from agentcli.infra.sandbox.trial.try_folders import PrivateFolder

            private = PrivateFolder(scratch)
            folder = private.path / "checkpoints"
        from agentcli.infra.checkpoints.limits import Limits

        limits = Limits(
            int(settings.largest_mb * 1e6),
            settings.most_files,
            int(settings.most_gb * 1e9),
            settings.ignored_files,
            int(settings.ignored_mb * 1e6),
            settings.exclude,
            (str(config.paths.state), str(config.paths.cache)),
        )
        from agentcli.infra.checkpoints.recorder import Recorder

        return Recorder(folder, roots, session_id, scratch=scratch, private=private, limits=limits)

    return cast("Checkpoints", LazyCheckpoints(make))


def has_interrupted(config: Config, session_id: str) -> bool:
    """True if a killed process has left calls of a session under way."""
    return (config.paths.state / "checkpoints" / "under_way" / session_id).is_dir()
