"""Finds images a person gives: a dropped or pasted path, the clipboard; and reads their headers."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from agentcli.errors import UserError

LARGEST_IMAGE = 5 * 1024 * 1024  # bytes; the Messages API takes no larger one
CLIPBOARD_TIME_LIMIT_S = 2.0

_CLIPBOARD = (
    ("wl-paste", "-t", "image/png"),
    ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"),
    ("pngpaste", "-"),
)
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_LONGEST_PATH = 4_096


def image_path(text: str) -> Path | None:
    """The image file whose whole path `text` is, as terminals paste a dropped file: quoted, escaped or as a URL."""
    text = text.strip()
    if len(text) > _LONGEST_PATH or "\n" in text:
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if text.startswith("file://"):
        text = unquote("/" + text.removeprefix("file://").partition("/")[2])  # behind the host, which may be named
    for candidate in (text, re.sub(r"\\(.)", r"\1", text)):
        if candidate.startswith(("/", "~/")) and candidate.lower().endswith(_SUFFIXES):
            try:
                path = Path(candidate).expanduser()
                if path.is_file():
                    return path
            except (OSError, ValueError, RuntimeError):  # a part too long, a NUL, no home folder
                continue
    return None


def read_image(path: Path) -> tuple[bytes, str]:
    """Its bytes and media type. Raises `UserError` for what is no image a model takes."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_IMAGE + 1)
            size = max(len(data), path.stat().st_size)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    require_sendable(size, str(path))
    if not (media_type := media_type_of(data)):
        raise UserError(f"{path} is no PNG, JPEG, GIF or WebP image.")
    return data, media_type


def require_sendable(size: int, name: str) -> None:
    """Raises `UserError` for an image of more than 5 MB."""
    if size > LARGEST_IMAGE:
        raise UserError(f"{name} has {size / 1024**2:.1f} MB; a model takes images of 5 MB at most. Make it smaller.")


async def clipboard_image(environment: Mapping[str, str]) -> bytes | None:
    """The image on the clipboard; None when there is none, or no program here that could read it."""
    for name, *arguments in _CLIPBOARD:
        if program := shutil.which(name, path=environment.get("PATH", "")):
            data = await _output((program, *arguments), environment)
            if media_type_of(data):
                return data
    return None


async def _output(argv: tuple[str, ...], environment: Mapping[str, str]) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    except OSError:
        return b""
    try:
        async with asyncio.timeout(CLIPBOARD_TIME_LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output if process.returncode == 0 else b""


def media_type_of(data: bytes) -> str:
    """By the first bytes; empty for what is no PNG, JPEG, GIF or WebP."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC if data.startswith(magic)), "")


def dimensions(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels, where the header says them."""
    found: tuple[int, int] | None = None
    match media_type_of(data):
        case "image/png" if len(data) >= 24:
            found = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        case "image/gif" if len(data) >= 10:
            found = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/webp" if len(data) >= 30:
            found = _webp_dimensions(data)
        case "image/jpeg":
            found = _jpeg_dimensions(data)
    return found


def _webp_dimensions(data: bytes) -> tuple[int, int] | None:
    """Of a lossy, lossless or extended file: RFC 9649, section 2.5 to 2.7."""
    match data[12:16]:
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


def _jpeg_dimensions(data: bytes) -> tuple[int, int] | None:
    """From the frame header, which stands behind segments of any number: ITU-T T.81, B.1.1.4 and B.2.2."""
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
        elif 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            return int.from_bytes(data[position + 7 : position + 9]), int.from_bytes(data[position + 5 : position + 7])
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return None
