"""Images a person gives: by path, from the clipboard; and what their headers say."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from pathlib import Path

import pytest

from agentcli.errors import UserError
from agentcli.frontends.terminal.input.typed_text import (
    MAX_IMAGE_BYTES,
    clipboard_image,
    image_path,
    read_image,
)
from agentcli.llm.media import media_type_of
from tests.conformance.wire_rules import picture as picture_of

PNG, JPEG, GIF, WEBP = IMAGES = [base64.b64decode(picture_of(120, 80, name)) for name in ("PNG", "JPEG", "GIF", "WEBP")]


def test_the_first_bytes_say_what_an_image_is() -> None:
    assert [media_type_of(data) for data in IMAGES] == ["image/png", "image/jpeg", "image/gif", "image/webp"]
    for data in (b"", b"RIFF\0\0\0\0WAVE", b"%PDF-1.7", b"text"):
        assert not media_type_of(data).startswith("image/")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "my (new) picture é.PNG"
    path.write_bytes(PNG)
    return path


def test_a_dropped_file_is_recognised_as_terminals_write_it(picture: Path) -> None:
    path = str(picture)
    escaped = "".join(f"\\{letter}" if letter in " ()" else letter for letter in path)
    for text in (path, f"'{path}'", f'"{path}"', escaped, f"{path}\n", picture.as_uri(), f"file://localhost{path}"):
        assert image_path(text) == picture


def test_other_text_is_not_a_dropped_image(picture: Path) -> None:
    texts = (
        "", "'", "picture.png", f"see {picture}", f"{picture}\n{picture}", f"{picture}.txt",
        f"{picture.parent}/gone.png", str(picture.parent), "/" + "x" * 300 + ".png", "/" + "x" * 5_000 + ".png",
        "/a\0.png",
        "~nobody-of-that-name/x.png", "https://example.com/a.png", "file://[/a.png",
    )  # fmt: skip
    for text in texts:
        assert image_path(text) is None


def test_an_image_is_read_with_its_type_whatever_its_name(picture: Path) -> None:
    picture.write_bytes(JPEG)
    assert read_image(picture) == (JPEG, "image/jpeg")


def test_a_file_that_cannot_be_sent_says_why(tmp_path: Path, picture: Path) -> None:
    with pytest.raises(UserError, match=r"Could not read .*gone\.png: No such file"):
        read_image(tmp_path / "gone.png")
    picture.write_bytes(b"text")
    with pytest.raises(UserError, match="is not a PNG, JPEG, GIF or WebP image"):
        read_image(picture)
    os.truncate(picture, MAX_IMAGE_BYTES + 1_000_000)
    with pytest.raises(UserError, match=r"is 6\.0 MB\. Models accept images of up to 5 MB: make it smaller"):
        read_image(picture)


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def pasted(folder: Path) -> bytes | None:
    return asyncio.run(clipboard_image({"PATH": f"{folder}:/usr/bin:/bin" if folder.exists() else ""}))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("wl-paste", "-t image/png"), ("xclip", "-selection clipboard -t image/png -o"), ("pngpaste", "-")],
)
def test_an_image_on_the_clipboard_is_read(tmp_path: Path, name: str, arguments: str) -> None:
    (tmp_path / "image").write_bytes(PNG)
    program(tmp_path, name, f'[ "$*" = "{arguments}" ] && cat {tmp_path}/image')
    for other in {"wl-paste", "xclip", "pngpaste"} - {name}:
        program(tmp_path, other, "exit 1")
    assert pasted(tmp_path) == PNG


def test_without_an_image_there_is_none(tmp_path: Path) -> None:
    for name in ("wl-paste", "xclip", "pngpaste"):
        program(tmp_path, name, "echo text")
    assert pasted(tmp_path) is None
    assert pasted(tmp_path / "gone") is None


@pytest.mark.slow
def test_a_clipboard_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("wl-paste", "xclip", "pngpaste"):
        program(tmp_path, name, "exec sleep 60" if name == "wl-paste" else "exit 1")
    start = time.monotonic()
    assert pasted(tmp_path) is None
    assert time.monotonic() - start < 40
