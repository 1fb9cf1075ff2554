"""Keeps who owns a session in Postgres: a lease of some seconds, renewed every second, by the database's clock."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions.ids import new_id
from agentcli.infra.sessions.postgres_database import Connection, Database, storable, value

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
# The row stays, so that no epoch comes twice.
_RELEASE = """
UPDATE agentcli.leases SET owner = '', address = '', expires = '-infinity', wanted = false
WHERE session_id = %s AND owner = %s AND epoch = %s
"""


class Lease:
    """Ownership of one session. It is ours while nobody has taken the session since, also when it has expired."""

    def __init__(self, session_id: str, owner: str, epoch: int) -> None:
        self.session_id = session_id
        self.owner = owner
        self.epoch = epoch
        self.is_wanted = False  # or lost

    async def hold(self, db: Connection) -> None:
        """Let nobody take it before the transaction's end. Raises `StorageError` when somebody has."""
        held = "SELECT 1 FROM agentcli.leases WHERE session_id = %s AND owner = %s AND epoch = %s FOR SHARE"
        if not await value(db, held, self.session_id, self.owner, self.epoch):
            self.is_wanted = True
            raise StorageError(
                f"Another program goes on with session {self.session_id} and this one may not write to it any more: "
                f"open it again with --resume {self.session_id}."
            )


class Leases:
    """The leases of one store. `address` is where others can reach this program, or empty."""

    def __init__(self, url: str, database: Database, address: str) -> None:
        self._database = database
        self._renewing = Database(url, most=1)  # which never waits for others
        self._address = storable(address)
        self._owner = new_id()
        self._held: set[Lease] = set()
        self._task: asyncio.Task[None] | None = None

    async def take(self, session_id: str) -> Lease:
        """Raises `SessionInUse` while another lease of the session has not expired."""
        async with self._database.transaction() as db:
            epoch = await value(db, _TAKE, session_id, self._owner, self._address)
        if epoch is None:
            raise SessionInUse(session_id)
        lease = Lease(session_id, self._owner, epoch)
        self._held.add(lease)
        if self._task is None:
            self._task = asyncio.create_task(self._renew())
        return lease

    async def take_over(self, session_id: str) -> Lease:
        """Ask whoever has the session for it, and wait. Raises `SessionInUse`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.take(session_id)
            except SessionInUse as error:
                is_late = time.monotonic() > deadline
                async with self._database.transaction() as db:
                    wanted = (
                        "UPDATE agentcli.leases SET wanted = %s WHERE session_id = %s AND wanted IS DISTINCT FROM %s"
                    )
                    await db.execute(wanted, (not is_late, session_id, not is_late))
                if is_late:
                    raise SessionInUse(session_id, was_asked=True) from error
            await asyncio.sleep(0.1)

    async def release(self, lease: Lease) -> None:
        self._held.discard(lease)
        with suppress(StorageError):  # then it expires
            async with self._database.transaction() as db:
                await db.execute(_RELEASE, (lease.session_id, lease.owner, lease.epoch))

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
                    names = {"owner": self._owner, "ids": [lease.session_id for lease in held]}
                    rows = await (await db.execute(_RENEW, names)).fetchall()
                wanted = {(session_id, epoch): wanted for session_id, epoch, wanted in rows}
                for lease in held:
                    lease.is_wanted |= wanted.get((lease.session_id, lease.epoch), True)


async def holder(db: Connection, session_id: str) -> str | None:
    """The address of the program that has the session open, None if none has."""
    query = "SELECT address FROM agentcli.leases WHERE session_id = %s AND expires > clock_timestamp()"
    address: str | None = await value(db, query, session_id)
    return address
