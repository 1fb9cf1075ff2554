"""Images and PDFs within what an API takes: the newest stay, and what has gone stays away."""

from __future__ import annotations

import base64

import pytest

from agentcli.llm.media import MAX_MEDIA_BYTES, MediaRules, fit_media, media_in
from agentcli.llm.messages import Base64Source, Document, Image, Message, Text, ToolResult, ToolUse, user_message
from tests.conformance.wire_rules import pdf, picture

TAKES = MediaRules(images=8, documents=True, image_bytes=10_000, max_side=100, max_large_images=4, max_side_of_many=50)
PDF = Document(Base64Source("application/pdf", base64.b64encode(b"%PDF-1.7").decode()))


def image(width: int = 9, media_type: str = "image/png") -> Image:
    return Image(Base64Source(media_type, picture(width, 9)))


def fitted(messages: tuple[Message, ...], rules: MediaRules) -> tuple[Message, ...]:
    return fit_media(messages, rules, range(len(messages)))


def shown(*blocks: Image | Document, rules: MediaRules = TAKES) -> list[str]:
    """What each block became: "image", "document", or the text in its place."""
    (message,) = fitted((Message("user", blocks),), rules)
    return [block.text if isinstance(block, Text) else type(block).__name__.lower() for block in message.content]


def test_content_that_fits_is_unchanged() -> None:
    messages = (user_message("Hi"), Message("user", (image(), PDF)))
    assert fitted(messages, TAKES) == messages
    assert fitted(messages[:1], MediaRules()) == messages[:1]


@pytest.mark.parametrize(
    ("block", "rules", "why"),
    [
        (image(101), TAKES, "[Image (image/png) left out: it has 101 x 9 pixels, more than 100 on a side]"),
        (image(), MediaRules(), "[Image (image/png) left out: this model sees no images]"),
        (PDF, MediaRules(images=1), "[PDF left out: this model takes none; read its text with a tool, such as pdftotext]"),  # noqa: E501
        (Image(Base64Source("image/png", "iVBO")), TAKES, "[Image (image/png) left out: it is broken]"),
        (Image(Base64Source("image/png", "?")), TAKES, "[Image (image/png) left out: it is broken]"),
        (Document(Base64Source("application/pdf", "iVBO")), TAKES, "[PDF left out: it is broken]"),
        (
            Image(Base64Source("image/gif", picture(9, 9, "GIF"))),
            MediaRules(images=1, image_types=("image/png",)),
            "[Image (image/gif) left out: this model takes no image/gif]",
        ),
        (image(), MediaRules(images=1, image_bytes=40), "[Image (image/png) left out: it has more than 0.0 MB]"),
    ],
)  # fmt: skip
def test_a_text_says_what_was_left_out_and_why(block: Image | Document, rules: MediaRules, why: str) -> None:
    assert shown(block, rules=rules) == [why]


def test_a_wrong_label_is_repaired() -> None:
    (message,) = fitted((Message("user", (image(media_type="image/jpeg"),)),), TAKES)
    assert message.content == (image(),)


def test_in_a_crowd_images_are_smaller() -> None:
    assert shown(*[image(60)] * 4) == ["image"] * 4
    assert shown(image(60), *[image()] * 4)[0].startswith("[Image (image/png) left out: it has 60 x 9 pixels")


def test_of_too_many_the_newest_stay_and_what_is_gone_stays_gone() -> None:
    before: set[int] = set()
    changes = 0
    for count in range(1, 50):
        said = shown(*[image(width) for width in range(1, count + 1)])
        gone = {number for number, text in enumerate(said) if text != "image"}
        assert before <= gone
        assert count - len(gone) <= TAKES.images
        assert said[-1] == "image"
        changes += gone != before
        before = gone
    assert changes < 50 / 2  # each change breaks the beginning that a cache has


@pytest.mark.slow
def test_all_media_together_stay_below_the_size_of_a_request() -> None:
    half = Document(Base64Source("application/pdf", PDF.source.data[:8] + "A" * (MAX_MEDIA_BYTES // 2)))
    said = shown(half, half, image())
    assert said[-1] == "image"
    assert said[0] == "[PDF left out: newer ones fill the request]"


def test_pages_of_all_pdfs_together_are_bounded() -> None:
    sixty, forty, long = (Document(Base64Source("application/pdf", pdf(pages))) for pages in (60, 40, 101))
    assert shown(sixty, forty) == ["document"] * 2
    assert shown(sixty, forty, image(), PDF, forty) == [
        "[PDF left out: newer ones fill the request]",
        "[PDF left out: newer ones fill the request]",
        "image",
        "document",
        "document",
    ]
    assert shown(long, sixty) == ["[PDF left out: it has 101 pages, more than 100]", "document"]


def test_images_in_results_count_too() -> None:
    result = ToolResult("a", (Text("seen"), image(101), image()))
    call = Message("assistant", (ToolUse("a", "read", {}),))
    messages = fitted((user_message("Hi"), call, Message("user", (result, image()))), TAKES)
    assert messages[:2] == (user_message("Hi"), call)
    assert len(list(media_in(messages))) == 2


def test_omissions_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    huge = image(177)
    for _ in range(3):
        shown(huge)
    assert [record.message for record in caplog.records] == [shown(huge)[0]]
