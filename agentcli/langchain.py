"""Connects agentcli and LangChain (extra `langchain`): messages both ways, tools, and a chat model as a provider."""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.tools import StructuredTool, ToolException

from agentcli.agent.events import ToolFinished
from agentcli.errors import UsageError
from agentcli.library.agent import Agent
from agentcli.llm import messages as ours
from agentcli.llm.errors import ProviderError, ServerError, Timeout, error_for_status
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Health, Request, StreamEvent, TextDelta, ToolSpec
from agentcli.llm.providers import BaseProvider
from agentcli.llm.wire.chat_completions import function_of

_CUT = ("length", "max_tokens", "MAX_TOKENS")  # finish reasons of services for a reply that was cut


def to_langchain(messages: Iterable[ours.Message], *, system: str = "") -> list[BaseMessage]:
    """Return our messages as LangChain's. Results of calls become a `ToolMessage` each; reasoning is left out."""
    converted: list[BaseMessage] = [SystemMessage(system)] if system else []
    for message in messages:
        if message.role == "assistant":
            calls = [tool_call(name=use.name, args=use.input, id=use.id) for use in message.tool_uses]
            converted.append(AIMessage(message.text, tool_calls=calls))
            continue
        converted += [_tool_message(block) for block in message.content if isinstance(block, ours.ToolResult)]
        if shown := [block for block in message.content if isinstance(block, ours.Text | ours.Image | ours.Document)]:
            converted.append(HumanMessage(_content(shown)))
    return converted


def from_langchain(messages: Iterable[BaseMessage]) -> tuple[str, tuple[ours.Message, ...]]:
    """Return the system text, and LangChain's messages as ours. Raises `UsageError` for content of other kinds.

    Consecutive messages of one role are joined, because all results of a reply must be in the next message.
    """
    system: list[str] = []
    converted: list[ours.Message] = []
    for message in messages:
        match message:
            case SystemMessage():
                system.append(message.text)
                continue
            case AIMessage():
                uses = tuple(_tool_use(call, number) for number, call in enumerate(message.tool_calls))
                new = ours.Message("assistant", (ours.Text(message.text), *uses) if message.text else uses)
            case ToolMessage(content=content):
                output = content if isinstance(content, str) else tuple(_blocks(message))
                new = ours.Message("user", (ours.ToolResult(message.tool_call_id, output, message.status == "error"),))
            case _:
                new = ours.Message("user", tuple(_blocks(message)))
        if converted and converted[-1].role == new.role:
            new = ours.Message(new.role, (*converted.pop().content, *new.content))
        converted.append(new)
    return "\n\n".join(system), tuple(converted)


def to_tool_message(finished: ToolFinished) -> ToolMessage:
    """Return the result of a call under the id that the model gave the call; structured data is the artifact."""
    fields = {"tool_call_id": finished.id, "name": finished.name, "artifact": finished.structured}
    return _tool_message(finished.result).model_copy(update=fields)


def _tool_message(result: ours.ToolResult) -> ToolMessage:
    content = result.content if isinstance(result.content, str) else _content(result.content)
    return ToolMessage(content, tool_call_id=result.tool_use_id, status="error" if result.is_error else "success")


def _content(blocks: Sequence[ours.Text | ours.Image | ours.Document]) -> Any:
    """Return a single text as a string, everything else as LangChain's standard blocks."""
    if len(blocks) == 1 and isinstance(blocks[0], ours.Text):
        return blocks[0].text
    content: list[dict[str, str]] = []
    for block in blocks:
        if isinstance(block, ours.Text):
            content.append({"type": "text", "text": block.text})
        else:
            kind, source = "image" if isinstance(block, ours.Image) else "file", block.source
            content.append({"type": kind, "base64": source.data, "mime_type": source.media_type})
    return content


def _blocks(message: BaseMessage) -> Iterator[ours.Text | ours.Image | ours.Document]:
    for part in message.content_blocks:  # LangChain's standard form, whatever the service
        match part:
            case {"type": "text", "text": str(text)}:
                yield ours.Text(text)
            case {"type": "image", "base64": str(data), "mime_type": str(kind)}:
                yield ours.Image(ours.Base64Source(kind, data))
            case {"type": "file", "base64": str(data), "mime_type": str(kind)}:
                yield ours.Document(ours.Base64Source(kind, data))
            case _:
                raise UsageError(f"Could not send {str(part)[:80]}. Use text, or images and files as base64.")


def _tool_use(call: Any, number: int) -> ours.ToolUse:
    return ours.ToolUse(call["id"] or f"call_{number}", call["name"], dict(call["args"]))  # some models give no ids


async def langchain_tools(agent: Agent, names: Sequence[str] | None = None) -> list[StructuredTool]:
    """Return the agent's tools for LangChain, or those that are named. The agent's permissions apply to their calls.

    Tools that a client or the session carries out are left out, because LangChain runs neither. The others are
    asynchronous. Called with a model's `ToolCall`, they return a `ToolMessage` with its id; an error has the status
    "error". Raises `UsageError` for a name that no tool has.
    """
    chosen = (await agent.session()).runtime.calls.tools.clone(only=names)
    return [_tool(agent, tool.spec()) for tool in chosen if tool.mode == "server"]  # it runs here


def _tool(agent: Agent, spec: ToolSpec) -> StructuredTool:
    async def call(**arguments: Any) -> tuple[Any, Any]:
        given = {name: value for name, value in arguments.items() if value is not None}  # None: the model left it out
        finished = await agent.call_tool(spec.name, given)
        content = _tool_message(finished.result).content
        if finished.result.is_error:
            raise ToolException(str(content))
        return content, finished.structured

    return StructuredTool(
        name=spec.name,
        description=spec.description,
        args_schema={"title": spec.name, "description": spec.description, "properties": {}, **spec.input_schema},
        coroutine=call,
        response_format="content_and_artifact",
        handle_tool_error=True,
    )


class LangChainProvider(BaseProvider):
    """Implements `Provider` with a chat model of LangChain's: `AgentOptions(provider=LangChainProvider(model))`.

    The length of a reply, its temperature and its effort are set where the chat model is made.
    """

    def __init__(self, chat: BaseChatModel, *, model: str = "", info: ModelInfo | None = None) -> None:
        model = model or str(getattr(chat, "model_name", "") or getattr(chat, "model", "") or type(chat).__name__)
        super().__init__(info or ModelInfo(model, "langchain", is_known=False))
        self._chat = chat

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        whole: AIMessageChunk | None = None
        functions = [{"type": "function", "function": function_of(spec)} for spec in request.tools]
        try:
            chat: Any = self._chat.bind_tools(functions) if functions else self._chat
            async with aclosing(chat.astream(to_langchain(request.messages, system=request.system))) as chunks:
                async for chunk in chunks:
                    whole = chunk if whole is None else whole + chunk
                    if chunk.text:
                        yield TextDelta(str(chunk.text))
        except Exception as error:
            raise _provider_error(error) from error
        if whole is None:
            raise ServerError(f"{self.model} gave no answer.")
        yield _done_event(whole, self.model)

    async def _check(self) -> Health:
        return Health(True, f"{self.model}, through LangChain")


def _done_event(whole: AIMessageChunk, model: str) -> Done:
    calls = [_tool_use(call, number) for number, call in enumerate(whole.tool_calls)]
    calls += [  # with arguments that are not JSON
        ours.ToolUse(call["id"] or f"invalid_{number}", call["name"] or "", {}, unparsed=call["args"] or "")
        for number, call in enumerate(whole.invalid_tool_calls)
    ]
    text, metadata = str(whole.text), whole.response_metadata
    blocks: tuple[ours.Block, ...] = (ours.Text(text), *calls) if text else tuple(calls)
    is_cut = (metadata.get("finish_reason") or metadata.get("stop_reason")) in _CUT
    stop_reason: ours.StopReason = "max_tokens" if is_cut else "tool_use" if calls else "end_turn"
    return Done(ours.Message("assistant", blocks), stop_reason, _usage(whole), model)


def _usage(whole: AIMessageChunk) -> ours.Usage:
    """Return the usage of a reply. LangChain counts cached tokens as part of the input."""
    used: Any = whole.usage_metadata or {}
    input, output = used.get("input_token_details", {}), used.get("output_token_details", {})
    read, written = input.get("cache_read") or 0, input.get("cache_creation") or 0
    uncached = max(0, used.get("input_tokens", 0) - read - written)
    return ours.Usage(
        uncached, used.get("output_tokens", 0), written, read, reasoning_tokens=output.get("reasoning") or 0
    )


def _provider_error(error: Exception) -> ProviderError:
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, NotImplementedError):  # raised by `bind_tools`
        return ProviderError(
            'This chat model takes no tools. Use one that does, or offer none: {"tools": {"only": ["none"]}}'
        )
    if isinstance(error, TimeoutError):
        return Timeout(f"The model did not answer in time: {error}")
    status, message = getattr(error, "status_code", None), f"{type(error).__name__}: {error}"
    return error_for_status(status, message) if isinstance(status, int) else ProviderError(message)
