"""Encodes text: the two encodings of OpenAI from this package's own data, other rank files, or an even cut of bytes."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import tiktoken
from msgspec import Struct

from agentcli.errors import ConfigError
from agentcli.llm.tokens.families import TokenEncoder

# Longer runs are cut: some patterns of tiktoken overflow its stack there, and no word is that long.
_RUN = re.compile(r"\s{10000}|\S{10000}")

# The SHA-256 of the official rank files (tiktoken_ext/openai_public.py).
_DIGESTS = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
# How they cut text into pieces (same).
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    "cl100k_base": _ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACE,
    "o200k_base": f"{_CASED}*{_SMALL}+{_ENDING}?|{_CASED}+{_SMALL}*{_ENDING}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACE,
}


class _NoParameters(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _RankFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `tiktoken`: a file of ranks as tiktoken writes them, and the pattern that goes with it."""

    file: str
    pattern: str = _PATTERNS["cl100k_base"]


class _EvenCut(Struct, frozen=True, forbid_unknown_fields=True):
    bytes_per_token: float = 3.0


class BytePairEncoder:
    """An encoding of tiktoken. Special tokens are text like any other here."""

    def __init__(self, name: str, ranks: dict[bytes, int], pattern: str) -> None:
        self.name = name
        self._encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(self, text: str) -> list[int]:
        return [id for chunk in _chunks(text) for id in self._encoding.encode_ordinary(chunk)]

    def decode(self, ids: list[int]) -> str:
        return self._encoding.decode(ids)

    def count(self, text: str) -> int:
        return sum(len(self._encoding.encode_ordinary(chunk)) for chunk in _chunks(text))


class EvenEncoder:
    """Cuts the UTF-8 of a text into tokens of about the same number of bytes, for models of which no more is known."""

    name = "bytes"

    def __init__(self, bytes_per_token: float) -> None:
        if not 0.25 <= bytes_per_token <= 64:
            raise ConfigError("bytes_per_token is a number from 0.25 to 64.", key="parameters")
        self._size = bytes_per_token

    def encode(self, text: str) -> list[int]:
        data = text.encode(errors="replace")
        edges = [round(n * self._size) for n in range(self.count(text))] + [len(data)]
        # A leading 1 keeps zeros, so that bytes can be told from the number.
        return [int.from_bytes(b"\1" + data[start:end]) for start, end in pairwise(edges)]

    def decode(self, ids: list[int]) -> str:
        return b"".join(id.to_bytes((id.bit_length() + 7) // 8)[1:] for id in ids).decode(errors="replace")

    def count(self, text: str) -> int:
        return -int(-len(text.encode(errors="replace")) // self._size)


def make_encoder(name: str, parameters: dict[str, Any]) -> TokenEncoder:
    """The encoder of a row. Raises `ConfigError` for parameters it does not take."""
    try:
        if name in _DIGESTS:
            msgspec.convert(parameters, _NoParameters)
            return official(name)
        if name == "tiktoken":
            given = msgspec.convert(parameters, _RankFile)
            return _from_file(given.file, given.pattern)
        return EvenEncoder(msgspec.convert(parameters, _EvenCut).bytes_per_token)
    except msgspec.ValidationError as error:
        raise ConfigError(f"encoder {name}: {error}.", key="parameters") from error


@cache
def official(name: str) -> TokenEncoder:
    """An encoding from the data of this package, which no network is asked for. It takes 0.2 s and 60 MB."""
    try:
        content = gzip.decompress((Path(__file__).parent / "data" / f"{name}.tiktoken.gz").read_bytes())
    except (OSError, EOFError):
        content = b""
    if hashlib.sha256(content).hexdigest() != _DIGESTS[name]:
        raise ConfigError(f"The data of the encoding {name} is damaged: install agentcli anew.")
    return BytePairEncoder(name, _ranks(content), _PATTERNS[name])


@cache
def _from_file(file: str, pattern: str) -> TokenEncoder:
    try:
        return BytePairEncoder("tiktoken", _ranks(Path(file).expanduser().read_bytes()), pattern)
    except (OSError, ValueError, binascii.Error) as error:
        raise ConfigError(f"the ranks could not be read ({error}).", file=file) from error


def _ranks(content: bytes) -> dict[bytes, int]:
    pairs = (line.split() for line in content.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _chunks(text: str) -> Iterator[str]:
    start = 0
    for run in _RUN.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    yield text[start:]
