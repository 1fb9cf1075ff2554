"""Spreads attempts over a Ray cluster: RAY_ADDRESS names it; without one a cluster is started on this machine.

Each worker needs this version of agentcli with the extra `ray`, and what the tasks run. Keys in the environment of
`eval run` travel with the jobs; keys kept in a keyring do not. Source: https://docs.ray.io/en/latest/ray-core/tasks.html.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from agentcli.errors import UsageError
from agentcli.evals.attempt import Attempts, person_settings
from agentcli.evals.engines.engine import Engine, Job
from agentcli.evals.outcome import Attempted, Variant
from agentcli.evals.task import Task, read_task, task_files
from agentcli.evals.temporary_folders import temporary_folder
from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import find_paths


class _Sent(msgspec.Struct, frozen=True):
    """A job as it travels: files are (path, mode, content)."""

    name: str
    files: list[tuple[str, int, bytes]]
    sample: int
    variant: Variant
    settings: dict[str, Any]
    environment: dict[str, str]


class RayEngine:
    """As `LocalEngine`, on the workers of a cluster; each attempt takes one of its CPUs. Raises `UsageError`."""

    def __init__(self, person: Config, variant: Variant, *, parallel: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                "--engine ray needs Ray: ./install.sh --extras ray, or pip install 'agentcli[ray]'."
            ) from error
        self._ray: Any = ray
        self._person = person
        self._variant = variant
        self._parallel = parallel

    async def attempts(self, jobs: Sequence[Job], started: Callable[[Job], None]) -> AsyncGenerator[Attempted, None]:
        ray, address = self._ray, os.environ.get("RAY_ADDRESS")
        here: dict[str, Any] = {} if address else {"num_cpus": self._parallel, "include_dashboard": False}
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **here)
        remote = ray.remote(_attempt)
        waiting = iter(jobs)
        running: dict[asyncio.Future[bytes], Any] = {}
        try:
            while True:
                while len(running) < self._parallel and (job := next(waiting, None)) is not None:
                    started(job)
                    reference = remote.remote(msgspec.msgpack.encode(self._sent(job)))
                    running[asyncio.ensure_future(_waited(reference))] = reference
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    del running[one]
                    yield msgspec.msgpack.decode(one.result(), type=Attempted)
        finally:
            for future, reference in running.items():
                future.cancel()
                ray.cancel(reference, force=True)
            ray.shutdown()

    def _sent(self, job: Job) -> _Sent:
        person = self._person
        return _Sent(
            job.task.name,
            list(task_files(job.task)),
            job.sample,
            self._variant,
            person_settings(person),
            dict(person.environment),
        )


async def _waited(reference: Any) -> bytes:
    result: bytes = await reference
    return result


def _attempt(data: bytes) -> bytes:
    """Make one attempt, on a worker."""
    sent = msgspec.msgpack.decode(data, type=_Sent)
    with temporary_folder() as folder:
        task = _unpacked(sent, folder / sent.name)
        environment = sent.environment | {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "")}
        person = load_config(
            find_paths(environment.get("AGENTCLI_HOME")), folder, environment, flags=sent.settings, caller="eval"
        )
        return msgspec.msgpack.encode(asyncio.run(_made(person, sent.variant, task, sent.sample)))


async def _made(person: Config, variant: Variant, task: Task, sample: int) -> Attempted:
    attempts = Attempts(person, variant)
    try:
        return await attempts.make(task, sample)
    finally:
        await attempts.aclose()


def _unpacked(sent: _Sent, folder: Path) -> Task:
    for name, mode, content in sent.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode:
            path.write_bytes(content)
            path.chmod(mode)
        else:
            path.symlink_to(os.fsdecode(content))
    (folder / "start").mkdir(exist_ok=True)
    return structs.replace(read_task(folder / "task.toml"), folder=folder)


_: type[Engine] = RayEngine
