"""Lets programs use names of the previous release; the next release drops this module."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast
from warnings import warn

from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.library.options import AgentOptions

Constructor = TypeVar("Constructor", bound=Callable[..., None])
_RENAMED = {  # parameters of `Agent`, by their old names; below, those that are options now
    "system_prompt": "instructions", "permission_mode": "permissions", "session_id": "conversation",
    "conversation_id": "conversation",
}  # fmt: skip
_MOVED = {"conversation_store": "store"} | {name: name for name in AgentOptions.__dataclass_fields__}


def accept_old_names(construct: Constructor) -> Constructor:
    """Wrap the constructor of `Agent`, so that it also accepts its old parameters, with a warning."""

    @wraps(construct)
    def construct_with_new_names(*arguments: Any, options: AgentOptions = AgentOptions(), **named: Any) -> None:
        renamed: dict[str, Any] = {}
        moved: dict[str, Any] = {"store": MemorySessions()} if "session_id" in named else {}  # it needed no store
        for old, new in (_RENAMED | _MOVED).items():
            if old in named:
                is_parameter = old in _RENAMED
                if (is_parameter and new in named) or getattr(options, new, None):  # one would be lost
                    raise TypeError(f"Agent(…) has {old} under its new name, too. Pass only the new one, {new}.")
                values = renamed if is_parameter else moved
                values[new] = named.pop(old) or values.get(new)  # two old names may have the same new one
                now = f"Agent({new}=…)" if is_parameter else f"Agent(options=AgentOptions({new}=…))"
                advice = f"Agent({old}=…) is {now} now; the next release drops the old name."
                warn(advice, DeprecationWarning, stacklevel=2)
        construct(*arguments, **named, **renamed, options=replace(options, **moved))

    return cast("Constructor", construct_with_new_names)
