"""Holds typed text, in which short tokens represent pastes and images; stores each project's prompts, and drafts."""

import base64
import hashlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import msgspec

from agentcli.conversation.mentions import typed_blocks
from agentcli.errors import UserError
from agentcli.frontends.terminal.programs import run_clipboard_programs
from agentcli.llm.media import dimensions_of, media_type_of
from agentcli.llm.messages import Base64Source, Block, Image, Text, without_empty_text
from agentcli.patterns import lazy_pattern
from agentcli.settings.files import FileLock, make_private_folder, replace_file

MAX_IMAGE_BYTES = 5 * 1024 * 1024  # of the Messages API
MAX_CLIPBOARD_BYTES = 64 * 1024 * 1024
MAX_LINES = 8  # of a paste that is inserted without a token
MAX_CHARS = 1_000  # of such a paste
_CLIPBOARD = (
    ("wl-paste", "-t", "image/png"), ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"), ("pngpaste", "-"),
)  # fmt: skip
_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_TOKEN = lazy_pattern(r"\[(Pasted|Image) #(\d+)([^\[\]\n]*)\]")  # kind, number, size
_SEQUENCE = lazy_pattern(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")  # a control sequence of ECMA-48
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))  # all but tab and line feed


def image_path(text: str) -> Path | None:
    """Return the path of an image if `text` is one, as terminals write a dragged file's: quoted, escaped or a URL."""
    text = text.strip()
    if "\n" in text:
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if text.startswith("file://"):
        text = unquote("/" + text.removeprefix("file://").partition("/")[2])  # after the host
    for candidate in (text, re.sub(r"\\(.)", r"\1", text)):
        if candidate.startswith(("/", "~/")) and candidate.lower().endswith(_SUFFIXES):
            with suppress(OSError, ValueError, RuntimeError):  # a part is too long, a NUL, no home folder
                if (path := Path(candidate).expanduser()).is_file():
                    return path
    return None


def read_image(path: Path) -> tuple[bytes, str]:
    """Return an image's bytes and media type. Raises `UserError` for a file that is not an image models accept."""
    try:
        check_image_size(path.stat().st_size, str(path))
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror}.") from error
    if not (media_type := media_type_of(data)).startswith("image/"):
        raise UserError(f"{path} is not a PNG, JPEG, GIF or WebP image.")
    return data, media_type


def check_image_size(size: int, name: str) -> None:
    if size > MAX_IMAGE_BYTES:
        raise UserError(f"{name} is {size / 1024**2:.1f} MB. Models accept images of up to 5 MB: make it smaller.")


async def clipboard_image(environment: Mapping[str, str]) -> bytes | None:
    async for data in run_clipboard_programs(_CLIPBOARD, environment, max_bytes=MAX_CLIPBOARD_BYTES):
        if media_type_of(data).startswith("image/"):
            return data
    return None


class TypedText(msgspec.Struct, frozen=True):
    """A text as it was typed, and the contents of its tokens."""

    text: str
    pastes: dict[str, str | Image] = {}

    def expand(self) -> str:
        """Return the text with each paste in place of its token; image tokens stay."""

        def replace(token: re.Match[str]) -> str:
            paste = self.pastes.get(token[0])
            return paste if isinstance(paste, str) else token[0]

        return _TOKEN.sub(replace, self.text)

    def insert_images(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return a prompt's blocks with images in place of their tokens. The first block has the typed text."""
        if not blocks or not isinstance(first := blocks[0], Text):
            return blocks
        parts: list[Block] = []
        position = 0
        for token in _TOKEN.finditer(first.text):
            if isinstance(image := self.pastes.get(token[0]), Image):
                parts += [Text(first.text[position : token.start()]), image]
                position = token.end()
        return (*without_empty_text([*parts, Text(first.text[position:])]), *blocks[1:])

    def without_images(self) -> "TypedText":
        text = _TOKEN.sub(lambda found: "" if isinstance(self.pastes.get(found[0]), Image) else found[0], self.text)
        return TypedText(text, {token: content for token, content in self.pastes.items() if isinstance(content, str)})


class Pastes:
    """The tokens of one input and their contents. A text that only looks like a token is not one."""

    def __init__(self) -> None:
        self._contents: dict[str, str | Image] = {}
        self._numbers = {"Pasted": 0, "Image": 0}  # of the last token of each kind

    def token_for(self, text: str) -> str:
        """Return the text to insert for a paste: a token such as `[Pasted #1 +120 lines]`, or a short text itself."""
        text = clean_paste(text)
        lines = text.removesuffix("\n").count("\n") + 1
        if lines <= MAX_LINES and len(text) <= MAX_CHARS:
            return text
        return self._new_token("Pasted", f"+{lines:,} lines" if lines > 1 else f"{len(text):,} characters", text)

    def add_image(self, data: bytes, media_type: str) -> str:
        """Return a token such as `[Image #1 120×80]`. Raises `UserError` for one of more than 5 MB."""
        check_image_size(len(data), "The image")
        size = dimensions_of(data)
        image = Image(Base64Source(media_type, base64.b64encode(data).decode()))
        return self._new_token("Image", f"{size[0]}×{size[1]}" if size else "", image)

    def token_at(self, text: str, cursor: int) -> tuple[int, int] | None:
        """Return start and end of the token that holds the character before `cursor`."""
        return next((one.span() for one in self._tokens(text) if one.start() < cursor <= one.end()), None)

    def typed(self, text: str) -> TypedText:
        # A terminal can send bytes that are not UTF-8; prompt_toolkit turns them into lone surrogates.
        contents = {found.group(): self._contents[found.group()] for found in self._tokens(text)}
        return TypedText(text.encode(errors="replace").decode(), contents)

    def adopt(self, sent: TypedText) -> str:
        """Add the contents of a text's tokens; return the text with these tokens renumbered after the present ones."""

        def renumbered(token: re.Match[str]) -> str:
            content = sent.pastes.get(token[0])
            return token[0] if content is None else self._new_token(token[1], token[3].strip(), content)

        return _TOKEN.sub(renumbered, sent.text)

    def _new_token(self, kind: str, size: str, content: str | Image) -> str:
        self._numbers[kind] += 1
        token = f"[{kind} #{self._numbers[kind]} {size}]" if size else f"[{kind} #{self._numbers[kind]}]"
        self._contents[token] = content
        return token

    def _tokens(self, text: str) -> Iterator[re.Match[str]]:
        return (found for found in _TOKEN.finditer(text) if found.group() in self._contents)


def rebuild_typed_text(content: Sequence[Block]) -> TypedText:
    """Return a stored prompt as a text for the input, with tokens in place of its images."""
    pastes, text = Pastes(), ""
    for block in typed_blocks(content):
        if isinstance(block, Image) and isinstance(block.source, Base64Source):
            text += pastes.add_image(base64.b64decode(block.source.data), block.source.media_type)
        elif isinstance(block, Text):
            text += block.text
    return pastes.typed(text)


def clean_paste(text: str) -> str:
    """Return a pasted text with plain line ends and nothing in it that could act as a key."""
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).translate(_CONTROLS)
    return text.encode(errors="replace").decode()


MAX_ENTRIES = 1_000  # of one project
KEPT_BYTES = 4 * 1024 * 1024  # read from the end of the file, and left of it by trimming
MAX_FILE_BYTES = 2 * KEPT_BYTES
MAX_ENTRY_BYTES = 500_000  # of an entry's line; a longer one is not written
LOCK_TIMEOUT_S = 1.0


class _HistoryLine(msgspec.Struct, omit_defaults=True):
    project: str
    text: str
    time: float  # in seconds since 1970
    pastes: dict[str, str | Image] = {}


class ProjectHistory:
    """The prompts of a project, in a file that several processes and projects share.

    The file is read when entries are first asked for. If the disk fails, only the history is lost.
    """

    def __init__(self, file: Path | None, project: str) -> None:
        self._file, self._project = file, project
        self._sent: list[TypedText] = []  # prompts of this session, the newest last
        self._stored: list[TypedText] | None = None  # prompts in the file, the newest first; None until it was read

    def load(self) -> None:
        """Read the file, if that has not been done. May be called from any thread."""
        if self._stored is None:
            distinct = (entry for entry, _ in itertools.groupby(self._read()))  # without repetitions in a row
            # The file may already contain prompts of this session.
            self._stored = [entry for entry in itertools.islice(distinct, MAX_ENTRIES) if entry not in self._sent]

    @property
    def entries(self) -> Sequence[TypedText]:
        self.load()
        return [*reversed(self._sent), *(self._stored or ())]

    def add(self, sent: TypedText) -> None:
        newest = self._sent[-1:] or (self._stored or [])[:1]  # empty if there is none
        if newest != [sent]:  # a repetition is not stored
            self._sent.append(sent)
            self._store(sent)

    def _read(self) -> Iterator[TypedText]:
        """Yield the project's entries in the file, the newest first."""
        stored = b""
        with suppress(OSError):
            stored = _read_tail(self._file) if self._file is not None else b""
        for line in reversed(stored.split(b"\n")):
            with suppress(msgspec.MsgspecError, ValueError):  # a line that was cut off, or that a newer version wrote
                entry = msgspec.json.decode(line, type=_HistoryLine)
                if entry.text and entry.project == self._project:
                    yield TypedText(entry.text, entry.pastes)

    def _store(self, sent: TypedText) -> None:
        for entry in (sent, sent.without_images()):  # without its images if it is too long with them
            line = _HistoryLine(self._project, entry.text, round(time.time(), 3), entry.pastes)
            encoded = msgspec.json.encode(line) + b"\n"
            if self._file is not None and len(encoded) <= MAX_ENTRY_BYTES:
                with suppress(OSError):
                    make_private_folder(self._file.parent)
                    _append(self._file, encoded)
                return


def _read_tail(file: Path) -> bytes:
    """Return the whole lines among the last `KEPT_BYTES`."""
    with file.open("rb") as stream:
        start = max(0, os.fstat(stream.fileno()).st_size - KEPT_BYTES)
        stream.seek(start)
        if start:
            stream.readline()  # the rest of a line that begins before
        return stream.read(KEPT_BYTES)


def _append(file: Path, line: bytes) -> None:
    """Append a line; trim a file that is too large, if no other process writes to it."""
    lock = FileLock(file.with_name(f"{file.name}.lock"), timeout_s=LOCK_TIMEOUT_S, poll_s=0.005)
    is_locked = False
    with suppress(OSError):  # the person is waiting, and some file systems have no locks
        lock.acquire()
        is_locked = True
    try:
        with file.open("ab+", buffering=0) as stream:  # a line is one write, so that lines of two processes do not mix
            os.fchmod(stream.fileno(), 0o600)
            size = stream.tell()
            is_cut = size and os.pread(stream.fileno(), 1, size - 1) != b"\n"  # a full disk cut the last line off
            stream.write(b"\n" + line if is_cut else line)
        if is_locked and size > MAX_FILE_BYTES:
            replace_file(file, _read_tail(file), syncs=False)
    finally:
        lock.release()


MAX_SESSIONS = 50  # of one directory at the same time; one more has no draft


def drafts_of(folder: Path, cwd: Path, *, takes_old_draft: bool) -> "Drafts | None":
    """Return a place for drafts in a directory that no running session uses; None if there is none."""
    # With `takes_old_draft`, it may have a text already, from a session that ended before its first prompt.
    key = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]
    with suppress(OSError):  # without a disk to write to there are no drafts
        make_private_folder(folder)
        for number in range(MAX_SESSIONS):
            file, lock = folder / f"{key}.{number}", FileLock(folder / f"{key}.{number}.lock")
            if (takes_old_draft or not file.exists()) and lock.try_acquire():
                return Drafts(file, lock)
    return None


class Drafts:
    """Stores the text that is being written: until the first prompt in `file`, then in a file of the session.

    The `session` of methods is its id, empty before the first prompt. If the disk fails, only the draft is lost.
    """

    def __init__(self, file: Path, lock: FileLock | None = None) -> None:
        self._first_file, self._lock = file, lock  # the lock keeps other processes from using the file
        self._file = file  # the file that has the text now

    def save(self, draft: TypedText, session: str = "") -> None:
        file = self._file_of(session)
        with suppress(OSError):
            if self._file != file:  # the first prompt was sent, or another session was opened: the text moves with it
                self._file.unlink(missing_ok=True)
            self._file = file
            if draft.text:
                make_private_folder(file.parent)
                replace_file(file, msgspec.json.encode(draft), syncs=False)
            else:
                file.unlink(missing_ok=True)

    def load(self, session: str = "") -> TypedText | None:
        try:
            return msgspec.json.decode(self._file_of(session).read_bytes(), type=TypedText)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def _file_of(self, session: str) -> Path:
        name = hashlib.sha256(session.encode()).hexdigest()[:16]
        return self._first_file.with_name(name) if session else self._first_file
