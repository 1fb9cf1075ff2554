"""Shows a paste as a short token in the input, and puts its contents back when it is sent."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from msgspec import Struct

from agentcli.frontends.terminal.input.images import require_sendable
from agentcli.llm.media import dimensions_of
from agentcli.llm.messages import Base64Source, Block, Image, Text, without_empty_text

MOST_LINES = 8  # of a paste that is shown as it is
MOST_CHARACTERS = 1_000

_TOKEN = re.compile(r"\[(Pasted|Image) #(\d+)([^\[\]\n]*)\]")
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))


class Sent(Struct, frozen=True):
    """A text as it was typed, and the contents of its tokens."""

    text: str
    pastes: dict[str, str | Image] = {}

    def without_images(self) -> Sent:
        texts = {token: content for token, content in self.pastes.items() if isinstance(content, str)}
        images = self.pastes.keys() - texts.keys()
        text = _TOKEN.sub(lambda found: "" if found.group() in images else found.group(), self.text)
        return Sent(text, {**texts})


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
            match piece, blocks[-1:]:
                case str(), [Text(before)]:
                    blocks[-1] = Text(before + piece)
                case str(), _:
                    blocks.append(Text(piece))
                case _:
                    blocks.append(piece)
        return without_empty_text(blocks)

    def in_place(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """A prompt's blocks with images in place of their tokens."""
        match blocks:
            case (Text(text), *rest):
                return (*self.blocks(text), *rest)
            case _:
                return blocks

    def token_at(self, text: str, cursor: int) -> tuple[int, int] | None:
        """Start and end of the token that holds the character before `cursor`, which moves or is deleted as one.

        For a key that goes forwards, ask with `cursor + 1`.
        """
        for found in self._tokens(text):
            if found.start() < cursor <= found.end():
                return found.span()
        return None

    def typed(self, text: str) -> Sent:
        """`text` with the contents of its tokens, to be stored."""
        return Sent(text, {found.group(): self._contents[found.group()] for found in self._tokens(text)})

    def adopt(self, sent: Sent) -> str:
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
