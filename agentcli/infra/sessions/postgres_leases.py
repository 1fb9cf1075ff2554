"""Keeps who owns a session in Postgres: a lease of some seconds, renewed every second, by the database's clock."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions.ids import new_id
from agentcli.infra.sessions.postgres_database import Database, storable, value
from agentcli.infra.sessions.store import Ownership
from agentcli.infra.sessions.tables import Tables

PATIENCE_S = 20.0  # with a program that is to give up a session
_RENEWED_EVERY_S = 1.0

_UNTIL = "clock_timestamp() + interval '4 seconds'"
_TAKE = f"""
INSERT INTO agentcli.leases AS lease (session_id, owner, epoch, address, expires, wanted)
VALUES (%s, %s, 1, %s, {_UNTIL}, false)
ON CONFLICT (session_id) DO UPDATE SET
    owner = excluded.owner, epoch = lease.epoch + 1, address = excluded.address, expires = {_UNTIL}, wanted = false
WHERE lease.expires < clock_timestamp()
RETURNING epoch
"""  # noqa: S608 - our words
# A row that is locked is in use by a transaction of its owner, and nobody can take it meanwhile.
_RENEW = f"""
WITH mine AS (
    SELECT session_id FROM agentcli.leases WHERE owner = %(owner)s AND session_id = ANY(%(ids)s)
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE agentcli.leases SET expires = {_UNTIL} WHERE session_id IN (SELECT session_id FROM mine)
)
SELECT session_id, epoch, wanted FROM agentcli.leases WHERE owner = %(owner)s AND session_id = ANY(%(ids)s)
"""  # noqa: S608 - our words
_WANT = "UPDATE agentcli.leases SET wanted = %s WHERE session_id = %s AND wanted IS DISTINCT FROM %s"
# The row stays, so that no epoch comes twice.
_RELEASE = """
UPDATE agentcli.leases SET owner = '', address = '', expires = '-infinity', wanted = false
WHERE session_id = %s AND owner = %s AND epoch = %s
"""


class Lease(Ownership):
    """Ownership of one session. It is ours while nobody has taken the session since, also when it has expired."""

    def __init__(self, leases: Leases, session_id: str, epoch: int) -> None:
        super().__init__(lambda: None, lambda: self.is_lost_or_wanted)
        self.session_id = session_id
        self.epoch = epoch
        self.is_lost_or_wanted = False
        self._leases = leases

    async def hold(self, db: Tables) -> None:
        held = "SELECT 1 FROM agentcli.leases WHERE session_id = :id AND owner = :owner AND epoch = :epoch FOR SHARE"
        if not await db.value(held, id=self.session_id, owner=self._leases.owner, epoch=self.epoch):
            self.is_lost_or_wanted = True
            raise StorageError(
                f"Another program goes on with session {self.session_id} and this one may not write to it any more: "
                f"open it again with --resume {self.session_id}."
            )

    async def release(self) -> None:
        await self._leases.release(self)


class Leases:
    """The leases of one store. `address` is where others can reach this program, or empty."""

    def __init__(self, url: str, database: Database, address: str) -> None:
        self.owner = new_id()
        self._database = database
        self._renewing = Database(url, max_connections=1)  # which never waits for others
        self._address = storable(address)
        self._held: set[Lease] = set()
        self._task: asyncio.Task[None] | None = None

    async def take(self, session_id: str, *, take_over: bool) -> Lease:
        """Take a lease; with `take_over` whoever has it is asked, and waited for. Raises `SessionInUse`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            async with self._database.transaction() as db:
                epoch = await value(db, _TAKE, session_id, self.owner, self._address)
                if epoch is None and take_over:
                    is_late = time.monotonic() > deadline
                    await db.execute(_WANT, (not is_late, session_id, not is_late))
            if epoch is not None:
                break
            if not take_over or is_late:
                raise SessionInUse(session_id, was_asked=take_over)
            await asyncio.sleep(0.1)
        lease = Lease(self, session_id, epoch)
        self._held.add(lease)
        if self._task is None:
            self._task = asyncio.create_task(self._renew())
        return lease

    async def release(self, lease: Lease) -> None:
        self._held.discard(lease)
        with suppress(StorageError):  # then it expires
            async with self._database.transaction() as db:
                await db.execute(_RELEASE, (lease.session_id, self.owner, lease.epoch))

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        for lease in tuple(self._held):
            await self.release(lease)
        await self._renewing.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEWED_EVERY_S)
            held = tuple(self._held)
            if not held:
                continue
            with suppress(StorageError):  # tried again; what another takes meanwhile cannot be written to
                async with self._renewing.transaction() as db:
                    names = {"owner": self.owner, "ids": [lease.session_id for lease in held]}
                    rows = await (await db.execute(_RENEW, names)).fetchall()
                wanted = {(session_id, epoch): wanted for session_id, epoch, wanted in rows}
                for lease in held:
                    lease.is_lost_or_wanted |= wanted.get((lease.session_id, lease.epoch), True)
