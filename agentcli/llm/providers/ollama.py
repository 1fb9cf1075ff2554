"""Ollama through its native chat API (docs/api.md, read 2026-11): its OpenAI API cannot set the context window."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from agentcli.llm import messages as ours
from agentcli.llm.addresses import ollama_address
from agentcli.llm.errors import BadRequest, ConnectionFailed, ContextOverflow, Overloaded, embedded_error
from agentcli.llm.http import HttpClient
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo, request_size
from agentcli.llm.provider import Done, Request, StreamEvent, UsageUpdate
from agentcli.llm.providers import BaseProvider
from agentcli.llm.streaming import LineParser, stream_reply
from agentcli.llm.wire.reply_parts import CallIds, Prose, call_events, count_in, parse_call, plain_name, text_in

BASE_URL = "http://127.0.0.1:11434"


class OllamaProvider(BaseProvider):
    """One model on an Ollama server. `num_ctx` is the window to use, unless the model's own is smaller."""

    _carrier: HttpClient

    def __init__(
        self, info: ModelInfo, *, base_url: str = BASE_URL, num_ctx: int = 32_768, read_timeout: float = 600.0
    ) -> None:
        super().__init__(msgspec.structs.replace(info, window=num_ctx, max_output=min(info.max_output, num_ctx // 2)))
        self._knows_abilities = False  # True once `/api/show` was asked for the model's abilities
        self._carrier = HttpClient(ollama_address(base_url), {}, read_timeout=read_timeout)

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        if not self._knows_abilities:
            await self._load_abilities()
        if request.tools and not self.info.takes_tools:
            raise BadRequest(f"{self.model} cannot call tools: choose another model, or give it --tools none.")
        stream = stream_reply(
            self._carrier,
            "/api/chat",
            build=lambda: to_body(request, self.info),
            reader=OllamaReader(request, self.info, ids=CallIds(request.call_ids)),
            parser=LineParser(),
            content_type="ndjson",
        )
        async with aclosing(stream) as events:
            async for event in events:
                yield event

    async def _load_abilities(self) -> None:
        shown = await self._carrier.fetch_json("/api/show", {"model": self.model})
        self._knows_abilities = True
        self.info = with_abilities(self.info, shown if isinstance(shown, dict) else {})

    async def _check(self) -> None:
        await self._load_abilities()


def with_abilities(info: ModelInfo, shown: dict[str, Any]) -> ModelInfo:
    """Return `info` with the abilities in `shown`, the answer of `/api/show`, and with the smaller of both windows."""
    details, abilities = shown.get("model_info"), shown.get("capabilities")
    details = details if isinstance(details, dict) else {}
    windows = (v for name, v in details.items() if name.endswith(".context_length") and isinstance(v, int) and v)
    if isinstance(abilities, list):
        control = "effort" if details.get("general.architecture") == "gptoss" else "toggle"  # others are on or off
        info = msgspec.structs.replace(
            info,
            thinking=control if "thinking" in abilities else "none",
            takes_images="vision" in abilities,
            takes_tools="tools" in abilities,
            is_known=True,
        )
    return msgspec.structs.replace(info, window=min(info.window, next(windows, info.window)))


MIN_CHECKED_PROMPT = 2_000  # tokens; the estimate of a shorter prompt is too coarse to find that it was cut
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
MIN_SHARE = 0.6  # of the estimate; fewer counted tokens mean that the beginning was dropped


def to_body(request: Request, info: ModelInfo) -> dict[str, Any]:
    """Return the body of `POST /api/chat`. It always sets the window, whose default may be only 4,096 tokens."""
    options: dict[str, Any] = {"num_ctx": info.window, "num_predict": request.max_tokens}
    if request.temperature is not None:
        options["temperature"] = request.temperature
    body: dict[str, Any] = {
        "model": info.id,
        "stream": True,
        "options": options,
        "truncate": False,  # makes a prompt that is too long an error, and does not drop its beginning
        "shift": False,  # ends a reply that fills the window, and does not drop the beginning of the prompt for it
        "keep_alive": "5m",
    }
    if info.thinking == "toggle":
        body["think"] = request.effort != "low"  # also without an effort, because reasoning is on by default
    elif info.thinking == "effort":
        effort = request.effort or "medium"
        body["think"] = "high" if effort in ("xhigh", "max") else effort  # Ollama's highest
    if request.tools:
        functions = [
            {"name": t.name, "description": t.description, "parameters": t.input_schema} for t in request.tools
        ]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
    body["messages"] = list(_messages(request, info))
    return request.remove_unsent(body)


def media_rules(info: ModelInfo) -> MediaRules:
    return MediaRules(images=100 if info.takes_images or not info.is_known else 0, image_types=IMAGE_TYPES)


def _messages(request: Request, info: ModelInfo) -> Iterator[Any]:
    if request.system:
        yield {"role": "system", "content": request.system}
    yield from request.prepared.wire_messages(request.messages, media_rules(info), wire_format="ollama", build=_to_wire)


def _to_wire(messages: tuple[ours.Message, ...]) -> Iterator[dict[str, Any]]:
    names = {use.id: use.name for message in messages for use in message.tool_uses}
    for message in ours.with_alternating_roles(messages):
        if message.role == "assistant":
            calls = [{"function": {"name": plain_name(use.name), "arguments": use.input}} for use in message.tool_uses]
            optional = {"thinking": message.unsigned_thinking, "tool_calls": calls}
            present = {name: value for name, value in optional.items() if value}
            yield {"role": "assistant", "content": message.text, **present}
            continue
        for result in (block for block in message.content if isinstance(block, ours.ToolResult)):
            wire = _message("tool", result.parts) | {"tool_name": plain_name(names.get(result.tool_use_id, "tool"))}
            if result.is_error and not wire["content"].startswith("Error"):  # the protocol has no mark for it
                wire["content"] = f"Error: {wire['content']}"
            yield wire
        if other := tuple(block for block in message.content if not isinstance(block, ours.ToolResult)):
            yield _message("user", other)


def _message(role: str, content: tuple[ours.Block, ...]) -> dict[str, Any]:
    text = "\n\n".join(block.text for block in content if isinstance(block, ours.Text))
    images = [block.source.data for block in content if isinstance(block, ours.Image)]
    return {"role": role, "content": text, **({"images": images} if images else {})}


class OllamaReader:
    """Builds a reply from the lines of a stream."""

    def __init__(self, request: Request, info: ModelInfo, *, ids: CallIds) -> None:
        self.model, self.has_all_content, self.has_ended = info.id, False, False
        self._request, self._info, self._ids = request, info, ids
        self._prose = Prose()
        self._load_reason = ""  # "load" or "unload", if the server did only that and sent no reply
        self._uses: list[ours.ToolUse] = []
        self._is_cut, self._usage = False, ours.Usage()  # set when the reply has ended

    def feed(self, line: dict[str, Any], out: list[StreamEvent]) -> None:
        if line.get("error"):
            raise embedded_error(line)
        message = line.get("message") or {}
        if thought := text_in(message.get("thinking")):
            self._prose.add_thinking(thought, out)
        self._prose.add(text_in(message.get("content")), out)
        for call in message.get("tool_calls") or ():
            self._add_call(call, out)
        if line.get("done") and line.get("done_reason") in ("load", "unload"):
            self._load_reason = line["done_reason"]
        elif line.get("done"):
            self._prose.close(out)
            self.has_all_content = self.has_ended = True
            self._is_cut = line.get("done_reason") == "length"
            self._usage = ours.Usage(count_in(line.get("prompt_eval_count")), count_in(line.get("eval_count")))
            out.append(UsageUpdate(self._usage))

    def _add_call(self, call: dict[str, Any], out: list[StreamEvent]) -> None:
        function = call.get("function") or {}
        id = self._ids.take(str(call.get("id") or ""))  # older servers give no id
        name, arguments = str(function.get("name", "")), function.get("arguments") or {}
        use = ours.ToolUse(id, name, arguments) if isinstance(arguments, dict) else parse_call(id, name, str(arguments))
        self._uses.append(use)
        out += call_events(use)

    def finish(self, out: list[StreamEvent]) -> Done:
        if self._load_reason and not self.has_ended:
            raise Overloaded(f"Ollama only {self._load_reason}ed {self.model} and gave no reply yet.")
        if not self.has_ended:
            raise ConnectionFailed("The server closed the stream before the reply was complete.")
        # Older servers drop the beginning of a long prompt (system text, goal) without an error (ollama#4967). The
        # tokens of an image depend on the model, so only the text is compared.
        expected = request_size(self._request, self._info).bytes / 4 * self._info.token_factor  # 4 bytes: English text
        counted = self._usage.input_tokens
        if expected > MIN_CHECKED_PROMPT and 0 < counted < MIN_SHARE * expected:
            raise ContextOverflow(
                f"Ollama read only {counted:,} of about {expected:,.0f} prompt tokens: it dropped the beginning. "
                "Give the model a larger window (tokens.ollama_num_ctx, or OLLAMA_CONTEXT_LENGTH at the server)."
            )
        reason: ours.StopReason = "max_tokens" if self._is_cut else "tool_use" if self._uses else "end_turn"
        return Done(self.partial(with_calls=True), reason, self._usage, self.model)

    def partial(self, *, with_calls: bool = False) -> ours.Message:
        self._prose.close([])
        return ours.Message("assistant", (*self._prose.blocks(), *(self._uses if with_calls else ())))
