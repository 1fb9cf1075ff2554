"""Runs the hooks of the program at the other end: functions of its own, which it calls for agentcli."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from agentcli.agent.interfaces import EventAnswer, EventHooks, EventName
from agentcli.agent.session import Session
from agentcli.conversation.entries import reminder
from agentcli.errors import UsageError
from agentcli.extensions.field_names import field_call
from agentcli.extensions.hooks.run import (
    DENYING,
    EVENTS,
    HookSession,
    HookSpec,
    RunningHooks,
    combine_answers,
    failed,
    read_hooks,
    read_object,
)
from agentcli.frontends.agent_sdk.channel import ClientError, ClientGone, ControlChannel
from agentcli.llm.messages import ToolUse


def callbacks(table: Mapping[str, Any], report: Callable[[str], object]) -> Iterator[HookSpec]:
    """Yield the hooks of an `initialize` request, whose commands are the ids of callbacks.

    `report` gets a sentence on an unknown event. Raises `UsageError` for a hook that cannot be read: it might deny.
    """

    def refuse(why: str) -> NoReturn:
        raise UsageError(why)

    for event, matchers in table.items():
        groups: list[dict[str, Any]] = []
        for matcher in matchers or ():
            more = {"timeout": matcher["timeout"]} if matcher.get("timeout") else {}
            more["onError"] = "deny" if matcher.get("onFailure") == "block" else "allow"
            hooks = [{"command": str(id), **more} for id in matcher.get("hookCallbackIds", ())]
            groups += [{"matcher": matcher.get("matcher"), "hooks": hooks}] if hooks else []
        yield from read_hooks({event: groups}, "initialize", refuse if event in EVENTS else report)


class CallbackHooks(RunningHooks, kw_only=True):
    """Asks the program for the answers of its hooks."""

    channel: ControlChannel

    async def run(self, spec: HookSpec, input: bytes) -> EventAnswer:
        fields = msgspec.json.decode(input)
        try:
            async with asyncio.timeout(spec.timeout_s):
                answer = await self.channel.ask(
                    "hook_callback", callback_id=spec.command, input=fields, tool_use_id=fields.get("tool_use_id")
                )
        except TimeoutError:
            return failed(spec, f"it timed out after {spec.timeout_s:g} s")
        except ClientGone as error:
            return failed(spec, str(error), "deny" if spec.event in DENYING else None)
        except ClientError as error:
            return failed(spec, str(error))
        return read_object(spec, answer)

    def input_sent(self, tool: str, input: Mapping[str, Any]) -> dict[str, Any]:
        return field_call(tool, input, self.cwd)[1]


class JoinedHooks:
    """Fires events for the hooks of settings and for those of the program. Implements `EventHooks`."""

    def __init__(self, *hooks: EventHooks) -> None:
        self._hooks = hooks

    async def fire(self, event: EventName, *, agent_id: str = "main", **fields: Any) -> EventAnswer:
        return combine_answers([await hooks.fire(event, agent_id=agent_id, **fields) for hooks in self._hooks])

    async def fire_about(
        self, event: EventName, call: ToolUse, input: dict[str, Any], *, agent_id: str = "main", **fields: Any
    ) -> EventAnswer:
        answers = [await one.fire_about(event, call, input, agent_id=agent_id, **fields) for one in self._hooks]
        return combine_answers(answers)


async def attach_hooks(session: Session, specs: Sequence[HookSpec], channel: ControlChannel) -> None:
    """Let the hooks run around the calls and at the events of a session, and fire `SessionStart`."""
    if not specs:
        return
    services, delegates = session.runtime.calls.services, session.runtime.calls.delegates
    about = HookSession(id=session.id, mode=lambda: session.state.mode, publish=session.publish)
    if services.mask is not None:
        about.mask = services.mask.text
    hooks = CallbackHooks(specs=specs, session=about, cwd=services.workspace.cwd, channel=channel)
    services.hooks = (*services.hooks, hooks)
    delegates.events = JoinedHooks(delegates.events, hooks) if delegates.events else hooks
    source = "resume" if session.state.conversation.entries else "startup"
    answer = await hooks.fire("SessionStart", subject=source, source=source)
    if answer.context:
        session.state.notes.append(reminder(answer.context))
