"""Runs the hooks of the program at the other end: functions of its own, which it calls for agentcli."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from agentcli.agent.interfaces import EventAnswer
from agentcli.agent.session import Session
from agentcli.errors import UsageError
from agentcli.extensions.field_names import field_call
from agentcli.extensions.hooks.run import DENYING, HookSession, RunningHooks, attach_hooks, failed, read_object
from agentcli.extensions.hooks.spec import EVENTS, HookSpec, read_hooks
from agentcli.frontends.agent_sdk.channel import ClientError, ClientGone, ControlChannel
from agentcli.frontends.agent_sdk.transcripts import HookTranscript


def callbacks(table: Mapping[str, Any], report: Callable[[str], object]) -> Iterator[HookSpec]:
    """Yield the hooks of an `initialize` request, whose commands are the ids of callbacks.

    `report` gets a sentence on an unknown event. Raises `UsageError` for a hook that cannot be read: it might deny.
    """

    def refuse(why: str) -> NoReturn:
        raise UsageError(why)

    for event, matchers in table.items():
        groups: list[dict[str, Any]] = []
        for matcher in matchers or ():
            more = {key: matcher[key] for key in ("timeout", "onFailure") if matcher.get(key)}
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
                    "hook_callback", callback_id=spec.title, input=fields, tool_use_id=fields.get("tool_use_id")
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


async def attach_callbacks(session: Session, specs: Sequence[HookSpec], channel: ControlChannel) -> None:
    """Let the hooks run around the calls and at the events of a session."""
    if specs:
        transcript = HookTranscript(session).path
        about = HookSession(id=session.id, mode=lambda: session.state.mode, transcript=transcript)
        cwd = session.runtime.calls.workspace.cwd
        await attach_hooks(session, CallbackHooks(specs=specs, session=about, cwd=cwd, channel=channel))
