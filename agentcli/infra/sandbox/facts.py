"""Describes what the local sandbox keeps commands from, for decisions and for the person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcli.infra.sandbox.session_confinement import MOST_OBEYED, SessionConfinement
from agentcli.tools.command import Grants, Profile


@dataclass
class LocalFacts:
    """Implements `SandboxFacts` for commands that have some grants."""

    _confinement: SessionConfinement
    _grants: Grants
    _why_no_dry_run: Callable[[], str]
    _read_secrets: Callable[[Sequence[Path], bool, Path | None], frozenset[str]]

    @property
    def profile(self) -> Profile:
        return self._confinement.limits.profile

    @property
    def roots(self) -> tuple[Path, ...]:
        return self._confinement.roots(self._grants)

    @property
    def confines(self) -> bool:
        return self._confinement.confines

    @property
    def dry_run_problem(self) -> str:
        return self._why_no_dry_run()

    def exposed_secrets(self, profile: Profile | None = None) -> Sequence[Path]:
        if self._confinement.backend.hides(profile or self.profile):
            return ()
        granted = {*self._grants.readable, *self._grants.writable}
        masked = [path for path in self._confinement.limits.masked if any(map(path.is_relative_to, self.roots))]
        found = (*self._confinement.scan.protected(self.roots)[0], *(path for path in masked if path.exists()))
        return [path for path in dict.fromkeys(found) if path not in granted]

    def secret_values(self, *, is_changed: bool = False, apart_from: Path | None = None) -> frozenset[str]:
        return self._read_secrets(self.roots, is_changed, apart_from)

    @property
    def warning(self) -> str:
        """Also what was reverted after a kill."""
        left = self._confinement.clean_up()
        done, failed = "; ".join(left.put_back), "; ".join(left.left_changed)
        parts = (
            self._weakness,
            self._unguarded,
            done and f"Put back what a command changed whose session was killed: {done}.",
            failed and f"Changed by a command of another session, and could not be put back: {failed}.",
        )
        return " ".join(filter(None, parts))

    @property
    def description(self) -> tuple[str, ...]:
        if self.profile == "danger-full-access":
            return ("Commands are not confined: they can read, change and send anything you can.",)
        if not self.confines:
            return (self._weakness,)
        backend, scan, roots = self._confinement.backend, self._confinement.scan, self.roots
        hosts = ", ".join(dict.fromkeys(self._grants.hosts)) or "none"
        lines = [f"Commands are confined by {backend.name}: {self.profile}, hosts: {hosts}."]
        if backend.why:
            lines.append(f"Not the best there is: {backend.why}" if backend.weakness else self._weakness)
        limits = backend.limits(self._confinement.bounds(None, self._grants))
        lines += [
            f"{root} has too many folders: secret files deep in it may be readable for commands."
            for root in roots
            if scan.is_partial(str(root))
        ]
        lines += filter(None, [self._unguarded])
        if (left := len(scan.protected(roots)[1]) - MOST_OBEYED) > 0:
            lines.append(f"{left:,} settings of editors and tools in folders below can be written: there are too many.")
        lines += limits
        if self.profile == "workspace-write":
            lines.append(self.dry_run_problem or "Commands that would ask run as dry runs first.")
        return tuple(lines)

    @property
    def _weakness(self) -> str:
        backend = self._confinement.backend
        if self.profile == "danger-full-access":
            return ""
        if not self.confines:
            return f"NO SANDBOX: every command asks. {backend.why}".rstrip()
        if not backend.weakness:
            return f"NO COMMAND CAN RUN: {backend.why}" if backend.why else ""
        better = f" A better one: {backend.why}" if backend.why else ""
        return f"Weak sandbox ({backend.name}): {backend.weakness}.{better}"

    @property
    def _unguarded(self) -> str:
        named = ", ".join(self._confinement.unguarded_folders(self._grants))
        return f"More is in {named} than can be put back: what commands change there may stay." if named else ""
