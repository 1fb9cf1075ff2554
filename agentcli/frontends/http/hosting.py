"""Manages the sessions of one server process: opens them, finds their owners, and takes over from dead owners."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec.structs import replace

from agentcli.agent.accounting import Account
from agentcli.agent.interfaces import EventStore, StreamEvent
from agentcli.background import start_in_background
from agentcli.errors import SessionInUse, StorageError, StreamMoved, UserError
from agentcli.frontends.hosts import OpenForClient, OpenRequest, UsageStore, session_info
from agentcli.frontends.http.hosted import HostedSession
from agentcli.frontends.http.stream import StreamWriter
from agentcli.frontends.json_output import entry_object, system_object

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 0.5
# Limits for shutting down: for the server's own sessions, for its other processes, and for slow readers.
CLOSE_TIMEOUT_S, PEERS_TIMEOUT_S, READERS_TIMEOUT_S = 10.0, 3.0, 1.0
_ENDING = "The server is shutting down. Try again in a moment."
_RETRY_AFTER_S = 5.0  # after work for a session failed
Accounts = Callable[[str], Account | None]  # returns the account that limits a user's spending


class Hosting:
    """The sessions that are open in this process."""

    def __init__(
        self, open_session: OpenForClient, store: UsageStore, events: EventStore, *, account_of: Accounts, idle_s: float
    ) -> None:
        self._open_session, self.store = open_session, store
        self.events = events
        self._account_of = account_of
        self._idle_s = idle_s  # sessions that nobody uses for so long are closed
        self.sessions: dict[str, HostedSession] = {}  # by id
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by session id
        self._readers: Counter[str] = Counter()  # by session id, including sessions that are open elsewhere
        self._retry_at: dict[str, float] = {}  # session id -> monotonic time, after a failure
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting_readers: set[asyncio.Task[object]] = set()  # readers that wait for events
        self._leaving: asyncio.Task[None] | None = None  # set when the server shuts down
        self._is_over = False  # no session is open here any more; readers get only the remaining events

    async def create(self, request: OpenRequest) -> str:
        """Open and store a new session, and return its id. Raises `UserError`."""
        if self._leaving is not None:
            raise StorageError(_ENDING)
        return (await self._open_here(request)).id

    async def open_or_locate(self, session_id: str, *, take_over: bool = False) -> HostedSession | str:
        """Open a session, or return the address of the program that has it ("" for a terminal). Raises `UserError`.

        With `take_over`, a session that a terminal has open is closed there and opened here.
        """
        if self._leaving is not None:
            raise StorageError(_ENDING)
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            if (hosted := self.sessions.get(session_id)) is not None:
                return hosted
            info = await session_info(self.store, session_id)
            holder = await self.store.holder(session_id)  # None if nobody has it open
            if holder or (holder == "" and not take_over):  # a session of a server is not taken over: requests go there
                return holder
            request = OpenRequest(
                cwd=Path(info.cwd), id=session_id, user_id=info.user_id, how="take_over" if take_over else "resume"
            )
            try:
                return await self._open_here(request)
            except SessionInUse:  # another program was faster
                return await self.store.holder(session_id) or ""

    async def _open_here(self, request: OpenRequest) -> HostedSession:
        """Open a session as its stream's only writer, and continue a turn that a kill cut off. Raises `UserError`."""
        state = None
        if request.id:
            state = await self.events.state(request.id)
            note = (await StreamWriter.of(self.events, request.id)).note
            request = replace(request, model=note.model, mode=note.mode)  # those that the last owner noted
        opened = await self._open_session(request)
        id = opened.session.id
        try:
            if (account := self._account_of(request.user_id)) is not None:
                opened.session.state.budgets = opened.session.state.budgets.within(account)
            hosted = HostedSession(opened, await StreamWriter.acquire(self.events, id), on_given_up=self.give_up)
            await hosted.begin(was_running=state is not None and state.status == "running")
        except BaseException:
            await opened.session.close()
            await opened.aclose()
            raise
        if self._leaving is not None:  # the shutdown began in the meantime
            await hosted.close()
            raise StorageError(_ENDING)
        self.sessions[id] = hosted
        return hosted

    def give_up(self, session_id: str) -> None:
        """Close a session in the background, if it is open here. Failures are logged."""

        async def close(hosted: HostedSession) -> None:
            try:
                await hosted.close()
            except UserError as error:
                log.warning("session %s: %s", hosted.id, error)

        if (hosted := self.sessions.pop(session_id, None)) is not None:
            start_in_background(close(hosted), self._closing)

    async def remove(self, session_id: str) -> None:
        """Move a session to the trash and end its stream. Raises `UserError`."""
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            if (hosted := self.sessions.pop(session_id, None)) is not None:
                await hosted.close()
            await self.store.remove(session_id)
            await self.events.remove(session_id)

    @asynccontextmanager
    async def reading(self, session_id: str) -> AsyncIterator[None]:
        """Keep a session open, and its stream up to date, while somebody follows it."""
        self._readers[session_id] += 1
        try:
            yield
        finally:
            self._readers -= Counter((session_id,))  # subtraction also drops sessions without readers

    def leave(self) -> asyncio.Task[None]:
        """Start to close the sessions and to end the streams after their last events; return the task that does it."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())
        return self._leaving

    async def _leave(self) -> None:
        """Close the sessions here, wait for the server's other processes, then end the streams."""
        own_ids = list(self.sessions)
        for session_id in own_ids:
            self.give_up(session_id)
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)
            if late:
                log.warning(
                    "%d sessions did not end within %.0f s. The next server resumes them.", len(late), CLOSE_TIMEOUT_S
                )
        deadline = time.monotonic() + PEERS_TIMEOUT_S
        with suppress(StorageError):  # the readers then get the last events from the next server
            # Readers here may follow sessions that other processes of this server are closing.
            while time.monotonic() < deadline and (followed := self._readers.keys() - own_ids):
                if followed.isdisjoint(await self.events.running()):
                    break
                await asyncio.sleep(0.1)
        self._is_over = True
        # No new events will come. Wake the readers that wait: they read the rest, then `events_after` ends the streams.
        for task in self._waiting_readers:
            task.cancel()
        deadline = time.monotonic() + READERS_TIMEOUT_S
        while time.monotonic() < deadline and self._readers:
            await asyncio.sleep(0.02)

    async def events_after(self, session_id: str, after: int, count: int, *, wait_s: float) -> Sequence[StreamEvent]:
        """Read events of a stream. Raises `StorageError`, also if the server is ending and nothing is left to read."""
        task = asyncio.current_task()
        assert task is not None
        if not self._is_over:
            self._waiting_readers.add(task)
            try:
                return await self.events.read(session_id, after, count, wait_s=wait_s)
            except asyncio.CancelledError:
                if not self._is_over:
                    raise
                task.uncancel()  # `_leave` cancelled the wait: read the remaining events now
            finally:
                self._waiting_readers.discard(task)
        if found := await self.events.read(session_id, after, count):
            return found
        raise StorageError("The server is shutting down.")

    async def catch_up(self, session_id: str) -> None:
        """Add new entries of the log to the stream if no server has the session open. Raises `StorageError`."""
        # The holder is the address of a server, which writes the stream itself; "" for a terminal; None for nobody.
        if session_id in self.sessions or (holder := await self.store.holder(session_id)):
            return
        state = await self.events.state(session_id)
        if holder is None and state is not None and state.status == "running":
            return  # the server that takes the session over adds the missing entries
        writer = await StreamWriter.of(self.events, session_id)
        sent_count = writer.note.entries
        info, missing = await self.store.load(session_id, after=sent_count)
        if not missing and (sent_count or writer.note.epoch):  # complete; only a new stream still needs `init`
            return
        objects = [] if sent_count else [system_object("init", session_id, cwd=info.cwd, is_resumed=False)]
        objects += [value for entry in missing if (value := entry_object(entry, session_id))]
        writer.change_note(entries=sent_count + len(missing))
        with suppress(StreamMoved):  # another process has added the missing entries
            # A new stream's session does not run on a server, so it is complete; an older stream keeps its status.
            await writer.write(objects, status=None if sent_count else "complete")

    async def run(self) -> None:
        """Take over sessions of dead owners, follow those of terminals, and close idle ones, until the server ends."""
        while self._leaving is None:
            await asyncio.sleep(CHECK_INTERVAL_S * random.uniform(0.8, 1.2))  # noqa: S311  # so that servers take turns
            try:
                for session_id in await self.events.running():
                    if session_id not in self.sessions:
                        await self._attempt(session_id, self._take_over)
                for session_id in list(self._readers):
                    await self._attempt(session_id, self.catch_up)
            except StorageError as error:
                log.warning("%s", error)
            long_ago = time.monotonic() - self._idle_s
            for session_id, hosted in list(self.sessions.items()):
                if hosted.is_idle and hosted.last_used < long_ago and not self._readers[session_id]:
                    self.give_up(session_id)

    async def _take_over(self, session_id: str) -> None:
        if await self.store.holder(session_id) is None:
            await self.open_or_locate(session_id)

    async def _attempt(self, session_id: str, work: Callable[[str], Awaitable[None]]) -> None:
        """Do some work for a session; after a failure nothing is done for it during `_RETRY_AFTER_S`."""
        if time.monotonic() < self._retry_at.get(session_id, 0.0):
            return
        try:
            await work(session_id)
        except Exception as error:  # even a bug must not hold up the other sessions
            self._retry_at[session_id] = time.monotonic() + _RETRY_AFTER_S
            log.warning("session %s: %s", session_id, error, exc_info=not isinstance(error, UserError))

    async def aclose(self) -> None:
        """End the sessions and their streams; the store stays open for its owner."""
        await self.leave()
        await self.events.close()
