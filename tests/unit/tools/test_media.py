"""file_read of images and PDFs: as blocks within a model's limits, and a clear word about those that cannot be."""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from typing import Any

import pytest
from PIL import Image as Pictures
from pypdf import PdfReader, PdfWriter

from agentcli.llm.media import MAX_IMAGE_BYTES, dimensions_of, media_type_of
from agentcli.llm.messages import Document, Image, Text
from agentcli.tools.builtin.file_read import MAX_MEDIA_BYTES, MAX_PDF_BYTES
from tests.unit.tools.bench import Bench

FORMATS = [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("GIF", "image/gif"), ("WEBP", "image/webp")]


def picture(name: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **settings: Any) -> bytes:
    output = io.BytesIO()
    Pictures.new(mode, size, "red").save(output, name, **settings)
    return output.getvalue()


def noise(name: str, size: tuple[int, int], **settings: Any) -> bytes:
    """A picture that compresses badly."""
    output = io.BytesIO()
    Pictures.frombytes("RGB", size, random.Random(1).randbytes(size[0] * size[1] * 3)).save(output, name, **settings)
    return output.getvalue()


def pdf(pages: int, **settings: Any) -> bytes:
    writer, output = PdfWriter(), io.BytesIO()
    for number in range(pages):
        writer.add_blank_page(100 + number, 100)
    if settings:
        writer.encrypt(**settings)
    writer.write(output)
    return output.getvalue()


def read(bench: Bench, name: str, **given: Any) -> tuple[str, bytes, str]:
    """The note, the bytes of the block and their media type."""
    note, block = bench.call("file_read", path=name, **given).content
    assert isinstance(note, Text)
    assert isinstance(block, (Image, Document))
    assert isinstance(block, Document) == (block.source.media_type == "application/pdf")
    return note.text, base64.b64decode(block.source.data), block.source.media_type


@pytest.mark.parametrize(("name", "media_type"), FORMATS)
def test_a_small_image_is_sent_as_it_is_and_known_by_its_first_bytes(bench: Bench, name: str, media_type: str) -> None:
    content = picture(name)
    bench.put("no ending", content)
    note, sent, sent_type = read(bench, "no ending")
    assert (sent, sent_type) == (content, media_type)
    assert note == f"no ending: {media_type}, 40 x 30 pixels, {len(content):,} bytes"


@pytest.mark.parametrize(("name", "media_type"), FORMATS)
def test_a_large_image_is_made_smaller_in_its_proportions(bench: Bench, name: str, media_type: str) -> None:
    bench.put("a", picture(name, (4_000, 1_000)))
    note, sent, sent_type = read(bench, "a")
    assert dimensions_of(sent) == (1_568, 392)
    assert sent_type == media_type_of(sent) == ("image/jpeg" if media_type == "image/jpeg" else "image/png")
    assert "4000 x 1000 pixels, shown as 1568 x 392" in note


@pytest.mark.slow
def test_an_image_of_many_bytes_is_sent_with_fewer(bench: Bench) -> None:
    content = noise("PNG", (1_500, 1_500))
    assert len(content) > MAX_IMAGE_BYTES
    bench.put("a.png", content)
    _, sent, media_type = read(bench, "a.png")
    assert media_type == media_type_of(sent) == "image/jpeg"
    assert len(base64.b64encode(sent)) <= 5 * 1024 * 1024


def test_transparency_stays_or_becomes_white(bench: Bench) -> None:
    bench.put("a.png", picture("PNG", (2_000, 10), "RGBA"))
    assert Pictures.open(io.BytesIO(read(bench, "a.png")[1])).mode == "RGBA"


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "I;16", "CMYK"])
def test_every_kind_of_pixel_can_be_made_smaller(bench: Bench, mode: str) -> None:
    output = io.BytesIO()
    Pictures.new(mode, (1_600, 20)).save(output, "JPEG" if mode == "CMYK" else "PNG")
    bench.put("a", output.getvalue())
    assert dimensions_of(read(bench, "a")[1]) == (1_568, 20)


def test_a_photo_that_lies_on_its_side_is_sent_upright(bench: Bench) -> None:
    exif = Pictures.Exif()
    exif[0x0112] = 6  # turn it a quarter to the right
    bench.put("a.jpg", picture("JPEG", (2_000, 1_000), exif=exif))
    assert dimensions_of(read(bench, "a.jpg")[1]) == (784, 1_568)


def test_of_a_large_animation_the_first_frame_is_sent(bench: Bench) -> None:
    frames = [Pictures.new("RGB", (1_700, 20), color) for color in ("red", "blue")]
    output = io.BytesIO()
    frames[0].save(output, "GIF", save_all=True, append_images=frames[1:])
    bench.put("a.gif", output.getvalue())
    note, sent, _ = read(bench, "a.gif")
    assert "first frame of an animation" in note
    pixel = Pictures.open(io.BytesIO(sent)).convert("RGB").getpixel((5, 5))
    assert pixel == (255, 0, 0)


@pytest.mark.parametrize(("name", "_"), FORMATS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_a_broken_image_is_an_error_and_not_sent(bench: Bench, name: str, _: str, part: float) -> None:
    content = noise(name, (60, 60))
    bench.put("a.img", content[: max(round(len(content) * part), 16)])
    error = bench.fails("file_read", path="a.img")
    assert error.kind == "validation_error"
    assert "a.img is a broken image" in str(error)


def png_claiming(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(20_000, 20_000), (100_000, 1_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_with_far_too_many_pixels_is_not_decoded(bench: Bench, size: tuple[int, int]) -> None:
    bench.put("bomb.png", png_claiming(*size))
    error = bench.fails("file_read", path="bomb.png")
    assert error.kind == "validation_error"
    assert "too many pixels" in str(error)


def test_a_file_that_is_far_too_large_is_not_read_to_its_end(bench: Bench) -> None:
    path = bench.put("a.png", picture("PNG"))
    with path.open("r+b") as file:
        file.truncate(MAX_MEDIA_BYTES * 100)
    assert "larger than 52 MB" in str(bench.fails("file_read", path="a.png"))


def test_what_stands_behind_an_image_does_no_harm(bench: Bench) -> None:
    bench.put("a.jpg", picture("JPEG") + b"more")
    bench.put("a.gif", picture("GIF") + b"\0")
    for name in ("a.jpg", "a.gif"):
        assert dimensions_of(read(bench, name)[1]) == (40, 30)


def test_a_pdf_is_a_document_block(bench: Bench) -> None:
    content = pdf(3)
    bench.put("a.pdf", content)
    note, sent, media_type = read(bench, "a.pdf")
    assert (sent, media_type) == (content, "application/pdf")
    assert note == f"a.pdf: application/pdf, 3 pages, {len(content):,} bytes"


def test_offset_and_limit_choose_pages_of_a_pdf(bench: Bench) -> None:
    bench.put("a.pdf", pdf(120))
    error = bench.fails("file_read", path="a.pdf")
    assert error.kind == "validation_error"
    assert "120 pages; a model takes 100" in str(error)
    note, sent, _ = read(bench, "a.pdf", offset=101, limit=3)
    assert "pages 101-103 of 120" in note
    assert [page.mediabox.width for page in PdfReader(io.BytesIO(sent)).pages] == [200, 201, 202]
    assert len(PdfReader(io.BytesIO(read(bench, "a.pdf", offset=90)[1])).pages) == 31
    assert "past its end" in str(bench.fails("file_read", path="a.pdf", offset=121))


@pytest.mark.slow
def test_a_pdf_of_too_many_bytes_is_an_error_that_says_how_to_get_its_text(bench: Bench) -> None:
    bench.put("a.pdf", pdf(1) + b"\n%" + b"x" * MAX_PDF_BYTES)
    error = bench.fails("file_read", path="a.pdf")
    assert error.kind == "validation_error"
    assert "pdftotext" in str(error)


def test_a_pdf_with_a_password_is_an_error(bench: Bench) -> None:
    bench.put("a.pdf", pdf(1, user_password="x", algorithm="RC4-128"))
    assert "is protected by a password" in str(bench.fails("file_read", path="a.pdf"))


@pytest.mark.parametrize("content", [b"%PDF-1.7\n\0", b"%PDF-1.4\n%%EOF", pdf(2)[:60]])
def test_a_broken_pdf_is_an_error_and_not_sent(bench: Bench, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    bench.put("a.pdf", content)
    assert "a.pdf is a broken PDF" in str(bench.fails("file_read", path="a.pdf"))
    assert capfd.readouterr().err == ""
