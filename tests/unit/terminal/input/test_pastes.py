"""A paste is shown short, sent whole, and does no harm."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.errors import UserError
from agentcli.frontends.terminal.input.typed_text import MAX_IMAGE_BYTES, Pastes, TypedText, clean_paste
from agentcli.llm.messages import Base64Source, Block, Image, Text
from tests.conformance.wire_rules import picture

PNG = base64.b64decode(picture(120, 80))
IMAGE = Image(Base64Source("image/png", base64.b64encode(PNG).decode()))


def sent(pastes: Pastes, text: str) -> tuple[Block, ...]:
    typed = pastes.typed(text)
    return typed.insert_images((Text(typed.expand()),))


def test_a_long_paste_is_a_token_and_a_short_one_itself() -> None:
    pastes = Pastes()
    for text in ("", "word", "8 lines\n" * 8, "x" * 1_000):
        assert pastes.token_for(text) == text
    assert pastes.token_for("line\n" * 119 + "line") == "[Pasted #1 +120 lines]"
    assert pastes.token_for("line\n" * 120) == "[Pasted #2 +120 lines]"
    assert pastes.token_for("x" * 2_400) == "[Pasted #3 2,400 characters]"
    assert pastes.typed("a [Pasted #3 2,400 characters]b").expand() == f"a {'x' * 2_400}b"


def test_a_token_that_was_not_made_is_text() -> None:
    pastes = Pastes()
    for text in ("[Pasted #1 +120 lines]", "[Image #1]"):
        assert pastes.typed(text).expand() == text
        assert sent(pastes, text) == (Text(text),)
        assert pastes.token_at(text, 5) is None


@given(
    st.lists(
        st.tuples(st.text(alphabet=st.characters(exclude_characters="[]"), max_size=5), st.text() | st.just("y\n" * 9))
    )
)
def test_every_paste_comes_back_where_it_was(parts: list[tuple[str, str]]) -> None:
    pastes = Pastes()
    shown = "".join(typed + pastes.token_for(pasted) for typed, pasted in parts)
    assert pastes.typed(shown).expand() == "".join(typed + clean_paste(pasted) for typed, pasted in parts)


@pytest.mark.parametrize(
    ("pasted", "cleaned"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n"),
        ("tab\there", "tab\there"),
        ("\x03\x04\x00\x1a\x7f\x9b", ""),
        ("rm -rf\x1b[201~\r", "rm -rf\n"),
        ("\x1b[200~in\x1b[201~", "in"),
        ("\x1b\x1b[201~[201~", "[201~"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\udcffb", "a?b"),
        ("ü 文 🙂", "ü 文 🙂"),
    ],
)
def test_a_paste_presses_no_keys(pasted: str, cleaned: str) -> None:
    assert clean_paste(pasted) == cleaned
    assert Pastes().token_for(pasted) == cleaned


@given(st.text(alphabet=st.characters() | st.sampled_from("\x1b[201~\r\n\x03\x9b"), max_size=50))
def test_pastes_keep_no_control_characters_but_line_ends_and_tabs(text: str) -> None:
    cleaned = clean_paste(text)
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in cleaned if letter not in "\n\t")
    assert clean_paste(cleaned) == cleaned
    cleaned.encode()


def test_an_image_is_a_token_with_its_size() -> None:
    pastes = Pastes()
    pastes.token_for("line\n" * 20)
    assert pastes.add_image(PNG, "image/png") == "[Image #1 120×80]"
    assert pastes.add_image(b"?", "image/png") == "[Image #2]"


def test_an_image_no_model_takes_is_refused() -> None:
    with pytest.raises(UserError, match=r"5\.0 MB\. Models accept images of up to 5 MB"):
        Pastes().add_image(bytes(MAX_IMAGE_BYTES + 1), "image/png")


def test_what_is_sent_is_parted_by_its_images() -> None:
    pastes = Pastes()
    image, paste = pastes.add_image(PNG, "image/png"), pastes.token_for("line\n" * 20)
    assert sent(pastes, f"what is {image}? {paste}end") == (
        Text("what is "),
        IMAGE,
        Text("? " + "line\n" * 20 + "end"),
    )
    assert sent(pastes, f"{image} {image}") == (IMAGE, IMAGE)
    assert sent(pastes, f"no {paste}") == (Text("no " + "line\n" * 20),)
    assert sent(pastes, "  ") == ()
    assert pastes.typed(f"{image} {paste}").expand() == f"{image} " + "line\n" * 20


def test_a_token_moves_and_goes_as_one() -> None:
    pastes = Pastes()
    token = pastes.token_for("line\n" * 20)
    text, start = f"see {token} now", 4
    end = start + len(token)
    assert pastes.token_at(text, start) is None
    assert pastes.token_at(text, end + 1) is None
    for cursor in range(start + 1, end + 1):
        assert pastes.token_at(text, cursor) == (start, end)
    assert pastes.token_at(token * 2, len(token)) == (0, len(token))
    assert pastes.token_at(token * 2, len(token) + 1) == (len(token), 2 * len(token))


def test_the_contents_of_a_text_can_be_kept_and_restored() -> None:
    pastes = Pastes()
    image, paste = pastes.add_image(PNG, "image/png"), pastes.token_for("line\n" * 20)
    pastes.token_for("not in the text\n" * 20)
    assert pastes.typed("a\udcffb") == TypedText("a?b"), "bytes that are no text lose themselves only"
    contents = pastes.typed(f"{paste} {image}").pastes
    assert contents == {paste: "line\n" * 20, image: IMAGE}
    later = Pastes()
    later.adopt(TypedText(f"{paste} {image}", {**contents, "no token": "x"}))
    assert sent(later, f"{paste}{image}") == (Text("line\n" * 20), IMAGE)
    assert later.typed("no token").expand() == "no token"
    assert later.token_for("next\n" * 20) == "[Pasted #2 +20 lines]"


def test_a_token_that_means_something_else_here_gets_a_number_of_its_own() -> None:
    pastes = Pastes()
    here = pastes.token_for("here\n" * 20)
    adopted = pastes.adopt(TypedText(f"old {here} and {here}", {here: "old\n" * 20}))
    assert adopted == "old [Pasted #2 +20 lines] and [Pasted #3 +20 lines]"
    assert pastes.typed(f"{here}|{adopted}").expand() == "here\n" * 20 + "|old " + "old\n" * 20 + " and " + "old\n" * 20
