"""The tools that a client brings and runs itself, and the calls of them that wait for their results."""

import asyncio
from collections.abc import Callable, Collection, Sequence

import msgspec

from agentcli.errors import ToolError
from agentcli.llm.messages import ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import Tool, ToolContext, ToolOutput, ToolRegistry

HandOver = Callable[[tuple[ToolUse, ...]], None]  # sends calls to the client


class _AnyArguments(msgspec.Struct, frozen=True):
    """Accepts any arguments: the schema of a client's tool describes them."""


async def _run_elsewhere(arguments: object, context: ToolContext) -> ToolOutput:
    raise ToolError("Only the client can run this tool.", kind="internal_error")


def with_client_tools(tools: ToolRegistry, offered: Sequence[ToolSpec]) -> ToolRegistry:
    """Add the tools that a client offers and runs itself. Raises `UsageError` for a name that is taken."""
    known = [tool.spec() for tool in tools if tool.mode == "client"]
    new = [spec for spec in offered if spec not in known]
    if not new:
        return tools
    all_tools = tools.clone()
    for spec in new:
        all_tools.register(client_tool(spec))
    return all_tools


def client_tool(spec: ToolSpec) -> Tool:
    return Tool(
        spec.name,
        spec.description,
        _AnyArguments,
        _run_elsewhere,
        "none",
        source="client",
        time_limit_s=None,
        mode="client",
        schema=spec.input_schema,
    )


class CallPaused(Exception):
    """The turn no longer waits for the client's result of a call, which may come later."""


class ClientCalls(msgspec.Struct, kw_only=True):
    """Calls that wait for the client. All that begin to wait at one moment are handed over in one event.

    Nobody waits for those that are `paused` any more, but they get no other result.
    """

    _waiting: dict[str, asyncio.Future[ToolOutput]] = msgspec.field(default_factory=dict)
    _new: list[ToolUse] = msgspec.field(default_factory=list)  # not handed over yet
    _has_client: bool = True
    paused: set[str] = msgspec.field(default_factory=set)
    receiving: asyncio.Lock = msgspec.field(
        default_factory=asyncio.Lock
    )  # held while results of a paused turn are stored

    async def result_of(self, call: ToolUse, hand_over: HandOver) -> ToolOutput:
        """Hand the call to the client and wait for its result. Raises `ToolError`, and `CallPaused`."""
        if call.id in self._waiting:
            raise ToolError(f"A call with the id {call.id} is already waiting.", kind="validation_error")
        if not self._has_client:
            raise _client_gone()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ToolOutput] = loop.create_future()
        self._waiting[call.id] = answer
        self.paused.discard(call.id)
        self._new.append(call)
        if len(self._new) == 1:  # the other calls of this moment join it until then
            loop.call_soon(self._hand_over_new, hand_over)
        try:
            return await answer
        finally:
            del self._waiting[call.id]

    def _hand_over_new(self, hand_over: HandOver) -> None:
        calls, self._new = self._new, []
        hand_over(tuple(calls))

    @property
    def waiting(self) -> Collection[str]:
        return [id for id, answer in self._waiting.items() if not answer.done()]

    def set_attended(self, is_attended: bool) -> None:
        """Note whether a client runs its tools. Without one, calls that wait end with an error, as later ones do."""
        self._has_client = is_attended
        for answer in self._waiting.values():
            if not is_attended and not answer.done():
                answer.set_exception(_client_gone())

    def pause(self, call_ids: Collection[str]) -> None:
        """End the wait for these calls."""
        for id in call_ids:
            if (answer := self._waiting.get(id)) is not None and not answer.done():
                answer.set_exception(CallPaused())
                self.paused.add(id)

    def answer(self, call_id: str, output: ToolOutput) -> bool:
        """Deliver the client's result; return False if no call with that id was waiting."""
        answer = self._waiting.get(call_id)
        if answer is None or answer.done():
            return False
        answer.set_result(output)
        return True


def _client_gone() -> ToolError:
    return ToolError("The client that runs this tool has disconnected. Continue without it.", kind="dependency_error")
