"""Keeps the permission rules that the person gave for good: one file in the state folder for all projects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import filelock
import msgspec

from agentcli.agent.interfaces import Restriction
from agentcli.errors import StorageError
from agentcli.settings.files import folder_text, make_private_folder, replace_file

_Rules = list[str | Restriction]  # a grant is a text
_Grants = dict[str, _Rules]  # by project root


class FileGrants:
    """Implements `GrantStore` for the project at `root`. Other programs may write the same file at the same time."""

    def __init__(self, file: Path, root: Path) -> None:
        self.file = file
        self._root = folder_text(root)

    def list(self) -> Sequence[str]:
        return [rule for rule in self._read().get(self._root, []) if isinstance(rule, str)]

    def restrictions(self) -> Sequence[Restriction]:
        return [rule for rule in self._read().get(self._root, []) if isinstance(rule, Restriction)]

    def add(self, rule: str) -> None:
        self._change(lambda rules: rules if rule in rules else [*rules, rule])

    def remove(self, rule: str) -> None:
        self._change(lambda rules: [other for other in rules if rule not in (other, getattr(other, "rule", other))])

    def _read(self) -> _Grants:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=_Grants)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{self.file} could not be read ({error}): mend it, or move it away.") from error

    def _change(self, change: Callable[[_Rules], _Rules]) -> None:
        try:
            make_private_folder(self.file.parent)
            with filelock.FileLock(self.file.with_suffix(".lock"), timeout=5):
                grants = self._read()
                grants[self._root] = change(grants.get(self._root, []))
                rules_by_root = {root: rules for root, rules in grants.items() if rules}
                replace_file(self.file, msgspec.json.format(msgspec.json.encode(rules_by_root)))
        except OSError as error:  # a time-out is one, too
            raise StorageError(f"{self.file} could not be written ({error}).") from error
