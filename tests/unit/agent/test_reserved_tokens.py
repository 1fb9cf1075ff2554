"""What is reserved for a prompt is enough, whatever it holds."""

from __future__ import annotations

import base64
import random
import string
import uuid

import pytest

from agentcli.llm.messages import user_message
from agentcli.llm.models import ModelInfo, max_estimate
from agentcli.llm.provider import Request
from agentcli.llm.token_encoders import EncoderRow, encoders

_CHANCE = random.Random(1)


def some(characters: str, count: int = 4_000) -> str:
    return "".join(_CHANCE.choice(characters) for _ in range(count))


def between(first: int, last: int) -> str:
    return "".join(chr(_CHANCE.randint(first, last)) for _ in range(2_000))


TEXTS = {
    "prose": "The quick brown fox jumps over the lazy dog. " * 100,
    "base64": base64.b64encode(_CHANCE.randbytes(4_000)).decode(),
    "hex": _CHANCE.randbytes(4_000).hex(),
    "digits": some(string.digits),
    "symbols": some(string.punctuation),
    "letters": some(string.ascii_letters),
    "uuids": "\n".join(str(uuid.UUID(int=_CHANCE.getrandbits(128))) for _ in range(200)),
    "json": '{"id": 17, "name": "x", "values": [1,2,3], "ok": true},\n' * 100,
    "chinese": between(0x4E00, 0x9FFF),
    "emoji": between(0x1F300, 0x1F6FF),
    "rare": between(0x10000, 0x1FFFF),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_no_text_has_more_tokens_than_are_reserved(name: str, encoding: str) -> None:
    text = TEXTS[name]
    most = max_estimate(Request("", (user_message(text),)), ModelInfo("m", "p"))
    assert encoders.encoder(EncoderRow(encoder=encoding)).count(text) <= most <= len(text.encode()) + 20
