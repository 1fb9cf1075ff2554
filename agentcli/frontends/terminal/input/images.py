"""Finds images that a person gives: a dropped or pasted path, the clipboard."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from agentcli.errors import UserError
from agentcli.llm.media import media_type_of
from agentcli.settings.short_program import run_short_program

LARGEST_IMAGE = 5 * 1024 * 1024  # bytes; the Messages API takes no larger one
CLIPBOARD_TIME_LIMIT_S = 2.0
MOST_READ = 64 * 1024 * 1024  # bytes, of the clipboard

_CLIPBOARD = (
    ("wl-paste", "-t", "image/png"),
    ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"),
    ("pngpaste", "-"),
)
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
    """The image's bytes and media type. Raises `UserError` for a file that is no image a model takes."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_IMAGE + 1)
            size = max(len(data), path.stat().st_size)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    require_sendable(size, str(path))
    if not (media_type := image_type_of(data)):
        raise UserError(f"{path} is no PNG, JPEG, GIF or WebP image.")
    return data, media_type


def require_sendable(size: int, name: str) -> None:
    """Raises `UserError` for an image of more than 5 MB."""
    if size > LARGEST_IMAGE:
        raise UserError(f"{name} has {size / 1024**2:.1f} MB; a model takes images of 5 MB at most. Make it smaller.")


async def clipboard_image(environment: Mapping[str, str]) -> bytes | None:
    """The image on the clipboard; None without one, or without a program that can read it."""
    for name, *arguments in _CLIPBOARD:
        if program := shutil.which(name, path=environment.get("PATH", "")):
            argv = (program, *arguments)
            try:
                end = await run_short_program(
                    argv, timeout_s=CLIPBOARD_TIME_LIMIT_S, max_bytes=MOST_READ, environment=environment
                )
            except OSError:
                continue
            if end.exit_code == 0 and image_type_of(end.stdout):
                return end.stdout
    return None


def image_type_of(data: bytes) -> str:
    """The media type by the first bytes; empty for all but PNG, JPEG, GIF and WebP."""
    found = media_type_of(data)
    return found if found.startswith("image/") else ""
