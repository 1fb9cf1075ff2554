"""Reads and writes conversations that programs keep themselves, as messages of Anthropic's or OpenAI's API."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from agentcli.conversation.conversation import messages_of
from agentcli.conversation.entries import Assistant, Body, Entry, Result, User
from agentcli.errors import UsageError
from agentcli.frontends.json_input import check_media
from agentcli.llm import messages as ours
from agentcli.llm.token_encoders import AnyMessage
from agentcli.llm.wire.anthropic import block_to_wire
from agentcli.llm.wire.chat_completions import Quirks, to_wire

HistoryForm = Literal["anthropic", "openai"]


def read_history(history: Iterable[AnyMessage], model: str) -> list[Body]:
    """Return the bodies of a conversation's entries, with replies attributed to `model` (`provider/model`).

    Raises `UsageError`, which names the wrong message or the call without a result.
    """
    provider, _, model_name = model.partition("/")
    bodies: list[Body] = []
    names: dict[str, str] = {}  # by call id: the name of the tool
    waiting: list[str] = []  # the ids of calls that have no result yet
    for number, given in enumerate(history):
        try:
            message = _message(given)
            if message.role == "assistant" and waiting:
                raise ValueError(f"it comes before the result of the call {waiting[0]!r}")
            results = [block for block in message.content if isinstance(block, ours.ToolResult)]
            for id in (result.tool_use_id for result in results):
                if id not in waiting:
                    raise ValueError(f"no message before it makes the call {id!r}")
                waiting.remove(id)
            for use in message.tool_uses:
                if use.id in names:
                    raise ValueError(f"the id {use.id!r} is that of an earlier call")
                names[use.id] = use.name
                waiting.append(use.id)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else error
            raise UsageError(f"history[{number}] is wrong: {why}.") from error
        if message.role == "assistant":
            bodies.append(Assistant(content=message.content, provider=provider, model=model_name))
            continue
        bodies += (Result(result=result, name=names[result.tool_use_id]) for result in results)
        if typed := tuple(block for block in message.content if not isinstance(block, ours.ToolResult)):
            bodies.append(User(typed))
    if waiting:
        raise UsageError(f"The history has no result for the call {waiting[0]!r}. Add one, or leave out the call.")
    return bodies


def _message(given: object) -> ours.Message:
    """Convert a message of either API to a `Message`. Raises `KeyError`, `TypeError`, `ValueError`."""
    if isinstance(given, ours.Message):
        message = given
    elif not isinstance(given, Mapping):
        raise TypeError(f"expected a dict with role and content, got {type(given).__name__}")
    elif given["role"] in ("system", "developer"):
        raise ValueError("a system text belongs in Agent(instructions=…)")
    else:
        role = "user" if given["role"] == "tool" else given["role"]
        message = msgspec.convert({"role": role, "content": [*_blocks(given)]}, ours.Message)
    if not message.content:
        raise ValueError("it is empty")
    msgspec.json.encode(message)  # raises for lone surrogates, which the log cannot store
    for block in message.content:
        if not isinstance(block, ours.BLOCKS_OF_ROLE[message.role]):
            raise TypeError(f"a message of the {message.role} takes no {type(block).__name__}")
        parts: tuple[ours.Block, ...] = block.parts if isinstance(block, ours.ToolResult) else (block,)
        check_media([part for part in parts if isinstance(part, ours.Image | ours.Document)])
    return message


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the content of a message of either API, converted to blocks of the Messages API."""
    content = message.get("content") or ()
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if message["role"] == "tool":
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content or ""}
        return
    for part in parts:
        match part:
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                yield msgspec.to_builtins(ours.Image(ours.Base64Source.of_url(url)))
            case {"type": "file", "file": {"file_data": str(url)}}:
                yield msgspec.to_builtins(ours.Document(ours.Base64Source.of_url(url)))
            case _:
                yield part
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = ours.decode_json(function["arguments"] or "{}")
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def form_of(history: Iterable[AnyMessage]) -> HistoryForm:
    """Return the API whose form a history has. Plain text messages, which are the same in both, are "anthropic"."""
    plain = [message for message in history if isinstance(message, Mapping)]
    is_openai = any(message.get("role") == "tool" or message.get("tool_calls") for message in plain)
    return "openai" if is_openai else "anthropic"


def write_messages(entries: Iterable[Entry], form: HistoryForm) -> list[dict[str, Any]]:
    messages = messages_of(entry for entry in entries if entry.is_prompt or isinstance(entry.body, Assistant | Result))
    if form == "openai":
        return [*to_wire(messages, quirks=Quirks(), provider="")]
    portable = ((one.role, [block for block in one.content if not isinstance(block, ours.Opaque)]) for one in messages)
    return [{"role": role, "content": list(map(block_to_wire, blocks))} for role, blocks in portable if blocks]
