"""Recognizes commands that delete what their text does not tell."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.safety.commands.programs.system_paths import is_system_path
from agentcli.safety.commands.reader.syntax import Field, State

_DELETING = frozenset("rm rmdir unlink srm shred truncate dd wipefs find".split())
_CHANGING_ALL = frozenset("chmod chown chgrp".split())


def deletes_unseen(fields: Sequence[Field], state: State) -> str:
    """The reason why a command may delete more than can be told, or an empty string."""
    program, arguments = fields[0], fields[1:]
    if not program.is_known:
        return "what it runs on a system folder cannot be told" if _on_system(arguments, state) else ""
    name = program.text.rpartition("/")[2]
    is_unknown = not all(field.is_known for field in arguments)
    is_recursive = any(field.text.startswith("-") and ("R" in field.text or "rec" in field.text) for field in arguments)
    if is_unknown and (name in _DELETING or (name in _CHANGING_ALL and is_recursive)):
        return f"what {name} changes cannot be told"
    return ""


def _on_system(arguments: Sequence[Field], state: State) -> bool:
    return any(is_system_path(field, state) for field in arguments)
