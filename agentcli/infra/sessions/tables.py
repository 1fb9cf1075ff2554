"""The tables of sessions, and the work on them that is the same in every database.

Work is written once, as coroutines on `Tables`. SQLite never waits, so `in_sqlite` runs them without an event loop.
`Words` is the query of a search; `text_of` returns the searchable text of an entry.
"""

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import combining, normalize
from zlib import crc32

import msgspec

from agentcli.agent.interfaces import SearchHit, SessionInfo, StoredEntries
from agentcli.conversation import entries as log_entries
from agentcli.conversation.history import title_of
from agentcli.conversation.schema import as_readable, to_record
from agentcli.errors import AmbiguousSession, NoSession, StorageError
from agentcli.llm.messages import Block, Text, ToolUse
from agentcli.patterns import lazy_pattern


class _NewestId:
    time_ms = 0  # Unix time in the id


def new_id() -> str:
    """Return a UUIDv7 (RFC 9562 §5.7) that is greater than all earlier ones of this process.

    It is made here because Python has it only from 3.14, and importing `uuid_utils` takes 8 ms.
    """
    _NewestId.time_ms = max(_NewestId.time_ms + 1, time.time_ns() // 1_000_000)
    random = int.from_bytes(os.urandom(10))
    # 48 bits of time, the version (7), 12 random bits, the variant (0b10), 62 random bits.
    value = _NewestId.time_ms << 80 | 0x7 << 76 | (random >> 62 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


T = TypeVar("T")

ENTRY_COLUMNS = "entries.id, parent_id, entries.time, schema_version, checksum, CAST(body AS BLOB)"  # for `read_entry`
# A condition for the sessions of one user, or without a user for all sessions but those of subagents.
OF_USER = "(user_id = :user_id OR :user_id IS NULL AND user_id NOT LIKE 'subagents of %')"
_COPIED_COLUMNS = "seq, id, parent_id, time, kind, schema_version, checksum, body"  # the same in all copies of an entry


def read_statements(file: str) -> dict[str, str]:
    """Return the statements in a file beside this module, by the names above them."""
    text = Path(__file__).with_name(file).read_text().replace("(entry)", ENTRY_COLUMNS).replace("(of_user)", OF_USER)
    return dict(part.split("\n", 1) for part in text.split("-- name: ")[1:])


SQL, SQLITE = read_statements("statements.sql"), read_statements("sqlite_statements.sql")

MAX_WORD_CHARS = 64
_EXCERPT_CHARS = 60  # on each side of the found word
_WORD = lazy_pattern(r"[^\W_]+")
_WORD_BEGINNING, _GAP = r"(?<![^\W_])", r"[\W_]+"  # no letter or digit comes before; neither is between two words
_LAST_WITH_ACCENTS = "\u052f"  # the end of Cyrillic; in later scripts a mark makes another letter


class Tables(ABC):
    """The tables within one transaction. A statement takes values as `:name`; attributes are SQL that differs."""

    new_number: str  # a table of one row with the column `n`, the number of a new entry
    copy_number: str  # an expression for the number `n` of a copied entry
    next_use: str  # an expression for a number greater than every `used`
    words: str = ""  # ", " and the column with the words of an entry; "" if there is none
    words_value: str = ""  # ", " and the expression for that column's value, made from `:words`
    lock_copies: str = "SELECT 1"  # waits until nobody copies entries or changes entries that have copies
    wait_for_copy_changes: str = "SELECT 1"  # waits until nobody changes entries that have copies
    forget_words: str = "SELECT 1"  # removes the index of words, which the next search rebuilds
    forget_stream: str = "SELECT 1"  # removes the event stream `:id`, which a server rebuilds from the log

    @abstractmethod
    def stream(self, sql: str, **values: Any) -> AsyncIterator[tuple[Any, ...]]: ...

    @abstractmethod
    async def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    async def search(self, words: "Words", *, cwd: str | None, user_id: str | None, limit: int) -> list[SearchHit]: ...

    def words_of(self, entry: log_entries.Entry) -> dict[str, Any]:
        """Return an entry's words as the parameter `words` of a statement, if the database stores them in the row."""
        return {}

    async def compute(self, function: Callable[[], T]) -> T:
        """Run a function that needs no database but may take long, as for an entry of many megabytes."""
        return function()

    async def value(self, sql: str, **values: Any) -> Any:
        """Return the first column of the first row, None if there is no row."""
        rows = await self.rows(sql, **values)
        return rows[0][0] if rows else None

    def _record_of(self, entry: log_entries.Entry) -> dict[str, Any]:
        record = to_record(entry)
        return {**record, "checksum": crc32(record["body"].encode()), **self.words_of(entry)}

    async def insert(self, session_id: str, stored: StoredEntries) -> None:
        # A new entry is its own origin (n), and belongs to this session (own = true), unlike a fork's copy.
        names = ":seq, :id, :parent_id, :time, :kind, :schema_version, :checksum, :body"
        statement = (
            f"INSERT INTO entries (n, origin, own, session_id, {_COPIED_COLUMNS}{self.words}) "  # noqa: S608 - constant text
            f"SELECT n, n, true, :session_id, {names}{self.words_value} FROM {self.new_number}"
        )
        for seq, entry in enumerate(stored.entries, stored.first_seq):
            record = await self.compute(partial(self._record_of, entry))
            await self.rows(statement, session_id=session_id, seq=seq, **record)

    async def replace_bodies(self, changes: Iterable[tuple[int, Sequence[Any]]]) -> None:
        """Replace bodies and checksums of entries. A change is the entry's `n` and its new row of `ENTRY_COLUMNS`."""
        columns, values = f"body, checksum{self.words}", f":body, :checksum{self.words_value}"
        statement = f"UPDATE entries SET ({columns}) = ({values}) WHERE n = :n"  # noqa: S608 - constant text
        for n, row in changes:
            *_, checksum, body = row
            words = await self.compute(partial(self.words_of, read_entry(row)))
            await self.rows(statement, n=n, checksum=checksum, body=body, **words)
        await self.rows(self.forget_words)


Work = Callable[[Tables], Coroutine[Any, Any, T]]


class UnstoredSession(msgspec.Struct, kw_only=True):
    """A session that will be stored together with its first entries. A fork begins with entries of its `source`."""

    id: str
    cwd: str
    name: str
    user_id: str
    source_id: str = ""
    shared_count: int = 0  # how many entries of the source it begins with
    last_shared_id: str | None = None  # the id of the last of these entries


async def store_entries(db: Tables, session: UnstoredSession | str, *parts: StoredEntries) -> None:
    """Store the new entries, and the session if it is new. Raises `StorageError` if its source was removed."""
    id = session if isinstance(session, str) else session.id
    if isinstance(session, UnstoredSession) and not await is_stored(db, id):  # else an earlier attempt has stored it
        await _store_session(db, session)
    last = await last_seq(db, id)
    for part in parts:
        if part.first_seq > last:  # else an earlier attempt has stored it
            await db.insert(id, part)
    await _touch(db, id, [entry for part in parts for entry in part.entries])


async def _store_session(db: Tables, new: UnstoredSession) -> None:
    """Store a new session. A fork also gets copies of the entries that it has in common with its source."""
    fork_values = {"source": new.source_id, "shared": new.shared_count}
    if new.source_id:  # check the source first, because failing work must not have changed anything
        await db.rows(db.wait_for_copy_changes)  # so that no entry is copied while a redaction changes its copies
        last_shared = "SELECT id FROM entries WHERE session_id = :source AND trashed = 0 AND seq = :shared"
        if await db.value(last_shared, **fork_values) != new.last_shared_id:
            raise StorageError(
                f"This session continues session {new.source_id}, which was removed. To bring that one back: "
                f"agentcli sessions restore {new.source_id}"
            )
    values = {"id": new.id, "cwd": new.cwd, "name": new.name, "user_id": new.user_id, "now": time.time()}
    await db.rows(
        "INSERT INTO sessions (id, cwd, name, user_id, created, updated, used) "  # noqa: S608 - constant text
        f"VALUES (:id, :cwd, :name, :user_id, :now, :now, coalesce({db.next_use}, 1))",
        **values,
    )
    if new.source_id:
        # A copy has the `origin` of its source, so that all copies of an entry are found; it is not the fork's `own`.
        columns = f"{_COPIED_COLUMNS}{db.words}"
        await db.rows(
            f"INSERT INTO entries (n, origin, own, session_id, {columns}) "  # noqa: S608 - constant text
            f"SELECT {db.copy_number}, origin, false, :id, {columns} FROM entries "
            "WHERE session_id = :source AND trashed = 0 AND seq <= :shared ORDER BY seq",
            id=new.id,
            **fork_values,
        )
        # Title and prompt come from the copies, because the source may have been redacted since this program read it.
        await _touch(db, new.id, await entries_of(db, new.id))


async def _touch(db: Tables, session_id: str, entries: Sequence[log_entries.Entry]) -> None:
    texts = {"title": title_of(entries), "last_prompt": title_of(reversed(entries))}
    await db.rows(SQL["touch"].replace("(next_use)", db.next_use), now=time.time(), id=session_id, **texts)


async def is_stored(db: Tables, session_id: str) -> bool:
    return bool(await db.value("SELECT 1 FROM sessions WHERE id = :id AND trashed = 0", id=session_id))


async def full_id(db: Tables, session_id: str, user_id: str | None = None) -> str:
    """Return the id of the one session with this name, or whose id begins with it. Raises `StorageError`."""
    session_id = session_id.encode(errors="replace").decode()  # an argument may contain bytes that are not UTF-8
    # `end` is greater than all ids with that beginning. An exact id comes first, and finds a subagent's session, too.
    # A few rows show if several sessions fit.
    rows = await db.rows(
        f"SELECT id FROM sessions WHERE trashed = 0 AND ({OF_USER} OR id = :id AND :user_id IS NULL) AND "  # noqa: S608
        "(id >= :id AND id < :end OR name = :id AND name <> '') ORDER BY id <> :id LIMIT 3",
        id=session_id,
        end=f"{session_id}\U0010ffff",
        user_id=user_id,
    )
    ids = [str(id) for (id,) in rows]
    if not ids:
        raise NoSession(session_id)
    if len(ids) == 1 or session_id in ids:
        return ids[0]
    if any(id.startswith(session_id) for id in ids):
        raise AmbiguousSession(f"Several sessions begin with {session_id!r}. Give more of the id.")
    raise AmbiguousSession(f"Several sessions are named {session_id!r}. Give the id of one (agentcli sessions list).")


async def session_infos(db: Tables, where: str, **values: Any) -> list[SessionInfo]:
    return [SessionInfo(*row) for row in await db.rows(f"{SQL['infos']} AND {where}", **values)]


async def entries_of(db: Tables, session_id: str, *, after: int = 0, trashed: float = 0) -> list[log_entries.Entry]:
    """Return the entries of a session, or of one in a batch of the trash, whose number is greater than `after`."""
    where = "session_id = :id AND trashed = :trashed AND seq > :after"
    query = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE {where} ORDER BY seq"  # noqa: S608 - constant text
    return [read_entry(row) for row in await db.rows(query, id=session_id, trashed=trashed, after=after)]


def read_entry(row: Sequence[Any]) -> log_entries.Entry:
    """Return the entry in a row of `ENTRY_COLUMNS`; a damaged one becomes `Unreadable` and keeps its text."""
    id, parent_id, time, version, checksum, body = row
    body = body.encode() if isinstance(body, str) else body  # Postgres returns a `str`, SQLite bytes
    if checksum is not None and crc32(body) != checksum:
        error = f"entry {id} is damaged: its checksum is not that of its text"
        return log_entries.Entry(id, parent_id, time, log_entries.Unreadable(error, body.decode(errors="replace")))
    return as_readable({"id": id, "parent_id": parent_id, "time": time, "schema_version": version, "body": body})


async def last_seq(db: Tables, session_id: str) -> int:
    last = "SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = :id AND trashed = 0"
    return int(await db.value(last, id=session_id))


class Words:
    """The words of a search. Each finds all words that begin with it, whatever their case and accents.

    A word with other characters, such as `file_read`, finds its parts in sequence. Raises `StorageError` for no word.
    """

    def __init__(self, text: str) -> None:
        self._phrases = [*filter(None, (_WORD.findall(folded(part)) for part in text.split()))]
        if not self._phrases:
            raise StorageError(f"There is nothing to search for in {text!r}. Give a word with a letter or a digit.")
        self._patterns = [re.compile(_WORD_BEGINNING + _GAP.join(phrase)) for phrase in self._phrases]

    @property
    def for_index(self) -> str:
        """The query of FTS5 (https://www.sqlite.org/fts5.html, 3)."""
        return " ".join(f'"{" ".join(phrase)}"*' for phrase in self._phrases)

    @property
    def for_tsquery(self) -> str:
        """The query of Postgres on `words_in` a text. It also finds texts that `are_in` must rule out."""
        terms: list[str] = []
        for *whole_words, beginning in self._phrases:
            terms += [f"'{word[:MAX_WORD_CHARS]}'" for word in whole_words]
            terms.append(f"'{beginning[:MAX_WORD_CHARS]}':*")
        return " & ".join(terms)

    def are_in(self, text: str) -> bool:
        text = folded(text)
        return all(pattern.search(text) for pattern in self._patterns)

    def excerpt(self, text: str) -> str:
        """Return a line of the text with the first found word in its middle."""
        matches = [match for pattern in self._patterns if (match := pattern.search(folded(text)))]
        word_start, word_end = min((match.span() for match in matches), default=(0, 0))  # FTS5 may find what these miss
        start, end = max(0, word_start - _EXCERPT_CHARS), word_end + _EXCERPT_CHARS
        text = normalize("NFC", text)  # the form in which `folded` counts positions
        line = "".join(character if character.isprintable() else " " for character in text[start:end])
        return f"{'…' if start > 0 else ''}{' '.join(line.split())}{'…' if end < len(text) else ''}"

    def make_hit(self, session_id: str, title: str, entry: log_entries.Entry) -> SearchHit:
        kind = str(entry.body.__struct_config__.tag)
        return SearchHit(session_id, entry.id, kind, self.excerpt(text_of(entry.body)), time=entry.time, title=title)


@cache
def _folded_character(character: str) -> str:
    """Return a character in lower case without accents. It stays one character, so that positions agree."""
    letters = normalize("NFD", character)
    is_accented = character <= _LAST_WITH_ACCENTS and all(map(combining, letters[1:]))
    return (letters[0] if is_accented else character).lower()[:1]  # İ in lower case is two characters


def folded(text: str) -> str:
    """Return a text as it is indexed and searched; its positions are those of the text in NFC."""
    if text.isascii():
        return text.lower()
    text = normalize("NFC", text)
    return text.translate({ord(character): _folded_character(character) for character in set(text)})


def words_in(text: str) -> list[str]:
    """Return the words of a text for an index without positions: each once, cut to `MAX_WORD_CHARS`."""
    return list(dict.fromkeys(word[:MAX_WORD_CHARS] for word in _WORD.findall(folded(text))))


def text_of(body: log_entries.Body) -> str:
    """Return the searchable text of an entry, without the model's thinking and system reminders."""
    match body:
        case log_entries.User(is_reminder=False) as user:
            return user.text
        case log_entries.Assistant(content=content):
            return "\n".join(text for block in content for text in _texts_of(block))
        case log_entries.Result(result=result):
            return result.text
        case log_entries.Compaction(carried=carried):
            return carried
        case log_entries.ContextNote(text) | log_entries.Pinned(text):
            return text
        case _:
            return ""


def _texts_of(block: Block) -> Iterable[str]:
    if isinstance(block, Text):
        yield block.text
    elif isinstance(block, ToolUse):
        yield from (block.name, *_texts_in(block.input), block.unparsed)


def _texts_in(value: Any) -> Iterable[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)
    elif value is not None:
        yield str(value)
