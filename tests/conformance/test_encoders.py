"""What every `TokenEncoder` does, run for each of them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.llm.tokens.families import TokenEncoder
from agentcli.llm.tokens.registry import EncoderRow, encoders
from tests.properties import examples

HARD = (
    "",
    " \n\t  x\r\n\r\n",
    "The quick brown fox, it's 3.14159 times FASTER than we'd THOUGHT'LL.",
    "これは日本語の文章です。中文也在这里。한국어도. مرحبا بالعالم",
    "👨‍👩‍👧 🏳️‍🌈 é́",
    "a" * 25_000 + " " * 25_000,
    "<|endoftext|><|im_start|>",
    Path(__file__).read_text("utf-8"),
)


@pytest.fixture(scope="module", params=["cl100k_base", "o200k_base", "tiktoken", "bytes 0.25", "bytes 2.6", "bytes 64"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TokenEncoder:
    name, _, size = str(request.param).partition(" ")
    parameters: dict[str, object] = {"bytes_per_token": float(size)} if size else {}
    if name == "tiktoken":
        file = tmp_path_factory.mktemp("ranks") / "own.tiktoken"
        tokens = [*(bytes([n]) for n in range(256)), b"ab", b"abab"]
        lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
        file.write_bytes(b"".join(lines))
        parameters = {"file": str(file)}
    return encoders.encoder(EncoderRow(name, 1.0, parameters))


@pytest.mark.parametrize("text", HARD, ids=lambda text: repr(text[:12]))
def test_text_comes_back_and_is_counted_as_it_is_encoded(encoder: TokenEncoder, text: str) -> None:
    ids = encoder.encode(text)
    assert encoder.decode(ids) == text
    assert encoder.count(text) == len(ids)


@given(st.text(max_size=200))
@examples(100)
def test_any_text_comes_back(encoder: TokenEncoder, text: str) -> None:
    assert encoder.decode(encoder.encode(text)) == text


def test_lone_surrogates_count_as_the_sign_for_what_is_missing_does(encoder: TokenEncoder) -> None:
    assert encoder.count("file \udcff name") == len(encoder.encode("file \udcff name")) > 0
