"""Counts tokens when a caller asks, with a server or an encoder; models.py estimates those of requests."""

import asyncio
import base64
import gzip
import json
import logging
import re
import time
import tomllib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from agentcli.errors import AgentcliError, ConfigError, did_you_mean
from agentcli.llm.http import HttpClient
from agentcli.llm.media import document_tokens, image_tokens
from agentcli.llm.messages import Message
from agentcli.llm.models import BYTES_PER_TOKEN, ModelInfo, family_of
from agentcli.llm.provider import ToolSpec
from agentcli.settings.check import find_error
from agentcli.settings.files import read_small_file

if TYPE_CHECKING:
    import tiktoken

AnyMessage = Message | Mapping[str, Any]
AnyTool = ToolSpec | Mapping[str, Any]
UNKNOWN = "unknown"
TOKENS_PER_MESSAGE = 4  # role and separators ("How to count tokens with tiktoken", OpenAI cookbook)
TOKENS_TO_REPLY = 3  # the start of every reply (same)
TIMEOUT_S = 3.0

_json = partial(json.dumps, ensure_ascii=False, default=str)
_paused_until: dict[str, float] = {}  # by a failed counter's address: when it is asked again (monotonic time)
# Fields that no model sees, and audio, which no provider here accepts.
_UNSEEN = frozenset("type id role signature cache_control tool_use_id tool_call_id input_audio".split())

# Longer runs are cut, because some patterns overflow the stack of tiktoken. No word is that long.
_LONG_RUN = re.compile(r"(\s{10000}|\S{10000})")
# How the encodings cut text into pieces (tiktoken_ext/openai_public.py).
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    "cl100k_base": _ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACE,
    "o200k_base": f"{_CASED}*{_SMALL}+{_ENDING}?|{_CASED}+{_SMALL}*{_ENDING}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACE,
}
BUNDLED_ENCODERS = (*_PATTERNS, "bytes")


class TokenEncoder(Protocol):
    """Counts the tokens of any text, even one with lone surrogates or names of special tokens."""

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class BytePairEncoder(msgspec.Struct, frozen=True):
    """One of tiktoken's encodings. Special tokens are plain text here."""

    name: str

    def encode(self, text: str) -> list[int]:
        encoding = _encoding(self.name)
        return [id for part in _LONG_RUN.split(text) for id in encoding.encode_ordinary(part)]

    def count(self, text: str) -> int:
        return len(self.encode(text))


@cache
def _encoding(name: str) -> "tiktoken.Encoding":
    """Read an encoding, which takes 0.2 s and 60 MB."""
    import tiktoken  # 60 ms, only for those who count

    file = Path(__file__).parent / "data" / f"{name}.tiktoken.gz"
    lines = gzip.decompress(file.read_bytes()).splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    return tiktoken.Encoding(name, pat_str=_PATTERNS[name], mergeable_ranks=ranks, special_tokens={})


class ByteEncoder:
    """Counts a token for each three bytes, for models whose encoding is not known."""

    name = "bytes"

    def count(self, text: str) -> int:
        return ceil(len(text.encode(errors="replace")) / BYTES_PER_TOKEN)


class EncoderRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The way to count some models' tokens: an `encoder`, and the factor `margin`.

    The server at `counter` gets `{"model", "text"}` and answers with `{"tokens"}`. If it fails, the encoder counts.
    """

    encoder: str = "cl100k_base"
    margin: Annotated[float, msgspec.Meta(ge=1, le=100)] = 1.2
    counter: Annotated[str, msgspec.Meta(pattern=r"^$|^https?://\S+$")] = ""
    exact: bool = True

    @property
    def mode(self) -> Literal["exact", "estimate"]:
        return "exact" if self.counter and self.exact else "estimate"


class FileRow(EncoderRow, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A row of a file, in which three fields have a second name. A `safety_margin` below 1 is added to 1."""

    encoding_name: str = ""
    safety_margin: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.2
    use_exact_counting: bool = True


_FIELD_NAMES = {"encoding_name": "encoder", "safety_margin": "margin", "use_exact_counting": "exact"}  # by second name


class ModelFacts(ModelInfo, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A model, and the way its tokens are counted."""

    family: str
    encoder: str
    margin: float
    mode: Literal["exact", "estimate"]


class Encoders:
    """All models' encoders. A model's row is found by its name, a pattern, its family, or "unknown", in this order.

    If several patterns (`gpt-4*`) match, the last registered one applies.
    """

    def __init__(self, rows: ChainMap[str, EncoderRow], custom: dict[str, TokenEncoder]) -> None:
        self._rows, self._custom = rows, custom

    def row(self, model: str) -> EncoderRow:
        """Return the row of `model` or `provider/model`."""
        parts = model.lower().split("/")
        names = ["/".join(parts[n:]) for n in range(len(parts))]  # openrouter/openai/gpt-5, openai/gpt-5, gpt-5
        newest_first = [key for table in self._rows.maps for key in reversed([*table])]
        patterns = [pattern for pattern in newest_first if any(fnmatchcase(name, pattern) for name in names)]
        keys = (*names, *patterns, family_of(model), UNKNOWN)
        return next(self._rows[key] for key in keys if key in self._rows)

    def register(self, models: str, encoder: str | TokenEncoder = "", **fields: Any) -> None:
        """Set fields of the `EncoderRow` of `models`, a name, pattern or family.

        The other fields keep the values that applied to `models` before. Raises `ValueError`, as for unknown encoders.
        """
        if encoder and not isinstance(encoder, str):
            self._custom[encoder.name] = encoder
            encoder = encoder.name
        if encoder:
            fields = {**fields, "encoder": encoder}
        key = UNKNOWN if models.lower() == "custom" else models.lower()  # `family_of` calls unknown models "custom"
        row = msgspec.convert({**msgspec.to_builtins(self.row(key)), **fields}, EncoderRow)
        known = (*BUNDLED_ENCODERS, *self._custom)
        if row.encoder not in known:
            nearest = did_you_mean(row.encoder, known)
            raise ValueError(f"no encoder {row.encoder!r}{nearest}; there is {', '.join(known)}")
        self._rows.pop(key, None)  # so that it becomes the last registered one
        self._rows[key] = row

    def with_file(self, file: Path) -> "Encoders":
        """Return these rows and those of a TOML or YAML file, which take precedence. Raises `ConfigError`."""
        combined = Encoders(self._rows.new_child(), self._custom)
        decode = msgspec.yaml.decode if file.suffix.lower() in (".yaml", ".yml") else tomllib.loads
        try:
            rows: Any = decode(read_small_file(file).decode("utf-8-sig"))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"could not be read ({why}).", file=str(file), key="tokens.encoders") from error
        is_nested = isinstance(rows, dict) and [*rows] == ["encoders"]
        rows, key = (rows["encoders"], "encoders") if is_nested else (rows, "")
        if problem := find_error(rows, dict[str, FileRow], key):
            wrong_key, message = problem
            raise ConfigError(message, file=str(file), key=wrong_key or "tokens.encoders")
        for models, fields in rows.items():
            margin = fields.get("safety_margin", 1.0)
            row = {_FIELD_NAMES.get(name, name): value for name, value in fields.items()}
            if margin < 1:  # 0.2 means 20 %
                row["margin"] = 1 + margin
            try:
                combined.register(models, **row)
            except ValueError as error:
                raise ConfigError(f"{error}.", file=str(file), key=f"{key}.{models}".lstrip(".")) from error
        return combined

    def file_margin(self, model: str) -> float | None:
        """Return the safety margin that the person's file of encoders gives `provider/model`; None if it gives none."""
        row, rows_of_file = self.row(model), self._rows.maps[0].values()  # `with_file` added the first map
        return row.margin if any(row is file_row for file_row in rows_of_file) else None

    def encoder(self, row: EncoderRow) -> TokenEncoder:
        if row.encoder in self._custom:
            return self._custom[row.encoder]
        return ByteEncoder() if row.encoder == "bytes" else BytePairEncoder(row.encoder)

    def facts(self, info: ModelInfo) -> ModelFacts:
        row, fields = self.row(info.name), msgspec.structs.asdict(info)
        return ModelFacts(**fields, family=family_of(info.name), encoder=row.encoder, margin=row.margin, mode=row.mode)


# cl100k and o200k are the encodings of the gpt models themselves (tiktoken's own table, 0.14). The vocabularies of
# Llama 3, Qwen and DeepSeek grew out of ones like cl100k and need a little more of them.
_CL100K, _O200K = EncoderRow(encoder="cl100k_base", margin=1.0), EncoderRow(encoder="o200k_base", margin=1.0)
encoders = Encoders(
    ChainMap(
        dict.fromkeys(("text-embedding-*", "gpt-3.5*", "gpt-4*"), _CL100K)
        | dict.fromkeys(("gpt-4.5*", "gpt-4.1*", "gpt-4o*", "gpt"), _O200K)
        | {"gemini": EncoderRow(encoder="o200k_base", margin=1.2)}
        | {name: EncoderRow(margin=1.15) for name in ("claude", "llama")}
        | {name: EncoderRow(margin=1.25) for name in ("glm", "mistral")}
        | {name: EncoderRow(margin=1.2) for name in ("qwen", "deepseek", UNKNOWN)}
    ),
    {},
)


def text_tokens(texts: Sequence[str], model: str, encoders: Encoders) -> int:
    """Return the tokens of all texts together; an exact counter is asked once."""
    row = encoders.row(model)
    texts = [text for text in texts if text]
    if not texts:
        return 0
    if row.mode == "exact" and (counted := exact_count(row.counter, model, "\n".join(texts))) is not None:
        return counted
    return ceil(sum(map(encoders.encoder(row).count, texts)) * row.margin)


def message_tokens(
    messages: Iterable[AnyMessage], model: str, encoders: Encoders, *, system: str = "", tools: Iterable[AnyTool] = ()
) -> int:
    """Return the tokens of messages and tools, which are ours or dicts of the Messages API or Chat Completions."""
    plain, family = [msgspec.to_builtins(message) for message in messages], family_of(model)
    parts = [part for message in plain for part in _parts(message, family)]
    texts = [system, *(_json(msgspec.to_builtins(tool)) for tool in tools), *(p for p in parts if isinstance(p, str))]
    media = sum(part for part in parts if isinstance(part, int))
    return text_tokens(texts, model, encoders) + media + TOKENS_PER_MESSAGE * len(plain)


def _parts(value: Any, family: str) -> Iterator[str | int]:
    """Yield the texts of a message, a block or a list of these, and the tokens (int) of its images and documents."""
    match value:
        case str():
            yield value
        case list() | tuple():
            yield from chain.from_iterable(_parts(item, family) for item in value)
        case {"type": "document", "source": {"type": "text", "data": text}}:
            yield str(text)
        case {"type": "document", "source": {"content": parts}}:
            yield from _parts(parts, family)
        case {"type": "image" | "image_url" | "input_image" | "document" | "file" | "input_file" as kind}:
            source = next((value[key] for key in ("source", "image_url", "file") if value.get(key)), value)
            fields = source if isinstance(source, dict) else {"url": source}
            # Base64, a `data:` URL, another address, or nothing if only the server has the file.
            data = next((str(fields[key]) for key in ("data", "url", "file_data") if fields.get(key)), "")
            start, _, data = data.rpartition(";base64,")
            if start.startswith("data:text/"):
                yield base64.b64decode(data + "==").decode(errors="replace")  # too much padding is ignored
            else:
                yield image_tokens(data, family) if "image" in kind else document_tokens(data, family)
        case {"type": "tool_use", "name": name, "input": arguments}:
            yield from (str(name), _json(arguments), str(value.get("unparsed", "")))
        case {"type": "function", "function": dict(call)}:
            yield from (text if isinstance(text, str) else _json(text) for text in call.values())
        case {"type": "opaque", "data": data}:
            yield _json(data)
        case dict():
            yield from _parts([item for key, item in value.items() if key not in _UNSEEN], family)


def exact_count(address: str, model: str, text: str) -> int | None:
    """Ask the person's own server for a count; None if it fails. Uses a thread: an event loop may be running."""
    if time.monotonic() < _paused_until.get(address, 0):
        return None
    body = {"model": model, "text": text.encode(errors="replace").decode()}
    pool = ThreadPoolExecutor(1)
    try:  # looking up a name can take longer than the request may, and cannot be ended
        counting = pool.submit(asyncio.run, _ask_counter(address, body))
        return counting.result(TIMEOUT_S + 1)  # after the request's own time-out
    except (AgentcliError, OSError, ValueError, RuntimeError) as error:  # a time-out is an OSError
        why = str(error) or f"no answer within {TIMEOUT_S:g} s"
        logging.getLogger("agentcli").warning(
            "The token counter at %s failed: counts are estimates. %s", urlsplit(address).hostname, why
        )
        _paused_until[address] = time.monotonic() + 30.0  # so that later texts need not wait
        return None
    finally:
        pool.shutdown(wait=False)


async def _ask_counter(address: str, body: dict[str, Any]) -> int:
    parts = urlsplit(address)
    path_and_query = parts._replace(scheme="", netloc="", fragment="").geturl()
    client = HttpClient(f"{parts.scheme}://{parts.netloc}", {}, read_timeout=TIMEOUT_S)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await client.fetch_json(path_and_query, body)
    finally:
        await client.aclose()
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError('Its answer is not {"tokens": NUMBER}.')
    return tokens
