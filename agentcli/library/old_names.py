"""Lets programs use names of the previous release; the next release drops this module."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast
from warnings import warn

from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.library.options import AgentOptions

Constructor = TypeVar("Constructor", bound=Callable[..., None])
_PARAMETERS = {  # old parameters of `Agent`, with their new names; below, those that are options now
    "system_prompt": "instructions", "permission_mode": "permissions", "session_id": "conversation",
    "conversation_id": "conversation",
}  # fmt: skip
_OPTIONS = {"conversation_store": "store"} | {name: name for name in AgentOptions.__dataclass_fields__}


def accept_old_names(construct: Constructor) -> Constructor:
    """Wrap the constructor of `Agent`, so that it also accepts its old parameters, with a warning."""

    @wraps(construct)
    def construct_with_new_names(*arguments: Any, **named: Any) -> None:
        construct(*arguments, **_in_new_names(named))

    return cast("Constructor", construct_with_new_names)


def _in_new_names(named: dict[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    moved: dict[str, Any] = {}
    options = named.get("options", AgentOptions())
    for name, value in named.items():
        new = _PARAMETERS.get(name) or _OPTIONS.get(name, "")
        if (name in _PARAMETERS and new in named) or getattr(options, new, None):  # one would be lost, such as a hook
            raise TypeError(f"Agent(…) has {name} under its new name, too. Pass only the new one, {new}.")
        if name in _PARAMETERS:
            parameters[new] = parameters.get(new) or value
            spelling = f"{new}=…"
        elif name in _OPTIONS:
            moved[new] = moved.get(new) or value
            spelling = f"options=AgentOptions({new}=…)"
        else:
            parameters[name] = value
            continue
        warn(f"Agent({name}=…) is Agent({spelling}) now; the next release drops the old name.", DeprecationWarning, 3)
    if "session_id" in named and not moved.get("store"):  # an old `session_id` needed no store
        moved["store"] = MemorySessions()
    return parameters | ({"options": replace(options, **moved)} if moved else {})
