"""Runs a session for a program that uses an Agent SDK: control requests come in, Claude Code's objects go out."""

import asyncio
from typing import Any

from agentcli.agent import ops
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UserError
from agentcli.frontends import json_input
from agentcli.frontends.agent_sdk.controls import answer_request, known_agents, server_info
from agentcli.frontends.agent_sdk.hooks import attach_callbacks
from agentcli.frontends.agent_sdk.output import ControlClient, FieldOutput
from agentcli.frontends.agent_sdk.permissions import PermissionBridge
from agentcli.frontends.hosts import ScreenlessHost
from agentcli.frontends.json_stream import Dialogue
from agentcli.llm.messages import Text


class ControlDialogue(Dialogue):
    """A dialogue in Claude Code's control protocol."""

    output: FieldOutput

    def __init__(self, host: ScreenlessHost, *, client: ControlClient, **options: Any) -> None:
        self._client, self._channel = client, client.channel
        self._is_initialized = False
        self._first_model = host.session.state.model.name
        self._handling: dict[str, asyncio.Task[None]] = {}  # requests that are being answered, by their ids
        super().__init__(host, client.channel.write, **options)

    def make_output(self, session: Session) -> FieldOutput:
        if self._client.answers_questions:  # before a command runs, not about what a dry run has changed
            session.runtime.calls.services.dry_runs = False
        self._attaching = self.spawn(attach_callbacks(session, self._client.hooks, self._channel))
        output = FieldOutput(session, self._client, partial=self.partial, demands=self.demands)
        output.questions = PermissionBridge(session, self._channel, self.spawn)
        output.init, output.is_idle = self.init, self._is_idle
        return output

    def init(self) -> dict[str, Any]:
        return super().init() | {"agents": [agent["name"] for agent in known_agents(self.session)]}

    # Lines

    def parse(self, raw: bytes) -> json_input.InputLine | None:
        """Return the request of a line; None for one that is answered beside the others, or needs no answer."""
        try:
            line = json_input.json_in(raw)
        except (ValueError, RecursionError) as error:
            return json_input.InputLine(raw, problem=str(error))
        match line:
            case {"type": "control_request", "request_id": str(id), "request": {"subtype": str()} as request}:
                return self._parse_request(raw, id, request)
            case {"type": "control_response", "response": response} if isinstance(response, dict):
                self._channel.deliver(response)
                return None
            case {"type": "control_cancel_request", "request_id": str(id)}:
                if (task := self._handling.get(id)) is not None:
                    task.cancel()
                return None
            case {"type": "user", "message": {"content": str(text)}, "client_composed": True} if text.strip():
                return json_input.InputLine(raw, ops.Prompt((Text(text),)))  # neither a command nor names of files
            case {"type": "user"}:
                return json_input.parse_line(raw)
            case {"type": "keep_alive" | "update_environment_variables"}:
                return None
            case _:
                return json_input.InputLine(raw, problem="This is neither a user message nor a control request.")

    def _parse_request(self, raw: bytes, id: str, request: dict[str, Any]) -> json_input.InputLine | None:
        match request:
            case {"subtype": "interrupt"}:
                return json_input.InputLine(raw, json_input.InterruptControl(), id)
            case {"subtype": "set_permission_mode", "mode": str(mode)}:
                return json_input.InputLine(raw, json_input.ModeControl(mode), id)
            case {"subtype": "set_model"}:
                name = request.get("model")
                is_first = name in (None, "default", "inherit")
                return json_input.InputLine(raw, ops.SetModel(self._first_model if is_first else str(name)), id)
            case _:
                self._handling[id] = task = self.spawn(self._answer(id, request))
                self.asides.add(task)  # it is answered also where the input ends
                task.add_done_callback(lambda done: self._handling.pop(id, None))
                task.add_done_callback(self.asides.discard)
                return None

    async def _answer(self, id: str, request: dict[str, Any]) -> None:
        """Answer a control request; one that cannot be carried out gets an error."""
        try:
            if request["subtype"] == "initialize":
                answer = server_info(self.host)
                answer |= {"hooks_applied": not self._is_initialized} if request.get("hooks") else {}
                self._is_initialized = True
            else:
                answer = await answer_request(self.host, request)
        except (UserError, ToolError) as error:
            self._channel.refuse(id, str(error))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._channel.refuse(id, f"The request {request['subtype']} is not complete: {error!r}.")
        else:
            self._channel.respond(id, **answer)

    async def carry_out(self, request: json_input.Request) -> None:
        if isinstance(request, json_input.UserMessage | ops.Prompt):
            self.output.report_state("running")
            await self._attaching
        await super().carry_out(request)

    def end_input(self) -> None:
        super().end_input()
        self._channel.close()

    def _is_idle(self) -> bool:
        """Return True if no other turn follows the one that ends."""
        queue = self.session.state.conversation.queue
        return not (queue.steering or queue.follow_ups) and self.lines.empty()
