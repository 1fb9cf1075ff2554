"""Shows pastes and images as short tokens in the input, and puts their contents back when it is sent."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from agentcli.errors import UserError
from agentcli.frontends.terminal.programs import run_clipboard_programs
from agentcli.llm.media import dimensions_of, media_type_of
from agentcli.llm.messages import Base64Source, Block, Image, Text, without_empty_text

LARGEST_IMAGE = 5 * 1024 * 1024  # bytes; the Messages API takes no larger one
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
    async for data in run_clipboard_programs(_CLIPBOARD, environment, max_bytes=MOST_READ):
        if image_type_of(data):
            return data
    return None


def image_type_of(data: bytes) -> str:
    """The media type by the first bytes; empty for all but PNG, JPEG, GIF and WebP."""
    found = media_type_of(data)
    return found if found.startswith("image/") else ""


MOST_LINES = 8  # of a paste that is shown as it is
MOST_CHARACTERS = 1_000

_TOKEN = re.compile(r"\[(Pasted|Image) #(\d+)([^\[\]\n]*)\]")
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))


class TypedText(Struct, frozen=True):
    """A text as it was typed, and the contents of its tokens."""

    text: str
    pastes: dict[str, str | Image] = {}

    def without_images(self) -> TypedText:
        text = _TOKEN.sub(lambda found: "" if isinstance(self.pastes.get(found[0]), Image) else found[0], self.text)
        return TypedText(text, {token: content for token, content in self.pastes.items() if isinstance(content, str)})


class Pastes:
    """The tokens of one input and their contents. A text that only looks like a token is none."""

    def __init__(self) -> None:
        self._contents: dict[str, str | Image] = {}
        self._last = {"Pasted": 0, "Image": 0}  # numbers given

    def token_for(self, text: str) -> str:
        """The text to insert for a paste: a token such as `[Pasted #1 +120 lines]`, or a short text itself, cleaned."""
        text = clean(text)
        lines = text.removesuffix("\n").count("\n") + 1
        if lines <= MOST_LINES and len(text) <= MOST_CHARACTERS:
            return text
        size = f"+{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return self._new_token("Pasted", size, text)

    def add_image(self, data: bytes, media_type: str) -> str:
        """A token such as `[Image #1 120×80]`. Raises `UserError` for an image no model takes."""
        require_sendable(len(data), "The image")
        size = dimensions_of(data)
        source = Base64Source(media_type, base64.b64encode(data).decode())
        return self._new_token("Image", f"{size[0]}×{size[1]}" if size else "", Image(source))

    def expand(self, text: str) -> str:
        """`text` with each paste in place of its token; image tokens stay."""
        return "".join(piece if isinstance(piece, str) else token for token, piece in self._pieces(text))

    def blocks(self, text: str) -> tuple[Block, ...]:
        """The blocks to send: the expanded text, split at its images; none is blank."""
        blocks: list[Block] = []
        for _, piece in self._pieces(text):
            if isinstance(piece, str) and blocks and isinstance(before := blocks[-1], Text):
                blocks[-1] = Text(before.text + piece)
            else:
                blocks.append(Text(piece) if isinstance(piece, str) else piece)
        return without_empty_text(blocks)

    def in_place(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """A prompt's blocks with images in place of their tokens."""
        if blocks and isinstance(first := blocks[0], Text):
            return (*self.blocks(first.text), *blocks[1:])
        return blocks

    def token_at(self, text: str, cursor: int) -> tuple[int, int] | None:
        """Start and end of the token that holds the character before `cursor`; for the next ask with `cursor + 1`."""
        return next((one.span() for one in self._tokens(text) if one.start() < cursor <= one.end()), None)

    def typed(self, text: str) -> TypedText:
        """`text` with the contents of its tokens, to be stored."""
        # A terminal can send bytes that are no UTF-8; prompt_toolkit makes lone surrogates of them.
        contents = {found.group(): self._contents[found.group()] for found in self._tokens(text)}
        return TypedText(text.encode(errors="replace").decode(), contents)

    def adopt(self, sent: TypedText) -> str:
        """Take in a text with its contents; tokens that mean something else here get new numbers."""
        text, contents = sent.text, sent.pastes
        tokens: dict[str, str] = {}
        for found in _TOKEN.finditer(text):
            token = found.group()
            if token in tokens or token not in contents:
                continue
            if self._contents.get(token, contents[token]) != contents[token]:
                tokens[token] = self._new_token(found[1], found[3].strip(), contents[token])
            else:
                tokens[token] = token
                self._contents[token] = contents[token]
                self._last[found[1]] = max(self._last[found[1]], int(found[2]))
        return _TOKEN.sub(lambda found: tokens.get(found.group(), found.group()), text)

    def _new_token(self, kind: str, size: str, content: str | Image) -> str:
        self._last[kind] += 1
        token = f"[{kind} #{self._last[kind]} {size}]" if size else f"[{kind} #{self._last[kind]}]"
        self._contents[token] = content
        return token

    def _tokens(self, text: str) -> Iterator[re.Match[str]]:
        return (found for found in _TOKEN.finditer(text) if found.group() in self._contents)

    def _pieces(self, text: str) -> Iterator[tuple[str, str | Image]]:
        """The text between tokens, and the contents of each with its token."""
        position = 0
        for found in self._tokens(text):
            yield "", text[position : found.start()]
            yield found.group(), self._contents[found.group()]
            position = found.end()
        yield "", text[position:]


def clean(text: str) -> str:
    """A pasted text with plain line ends and nothing in it that could act as a key."""
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).translate(_CONTROLS)
    return text.encode(errors="replace").decode()
