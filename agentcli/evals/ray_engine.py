"""Makes attempts on a Ray cluster: RAY_ADDRESS names it; without one a cluster is started on this machine.

Each worker needs this version of agentcli with the extra `ray`, and the programs that the tasks run. Only keys in
the environment travel along. Source: https://docs.ray.io/en/latest/ray-core/tasks.html.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from agentcli.errors import UsageError
from agentcli.evals.attempt import LocalEngine, person_settings, temporary_folder
from agentcli.evals.store import Attempted, Variant
from agentcli.evals.task import Task, read_task, task_files
from agentcli.settings.load import Config, load_config


class _RayJob(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as it travels to a worker; `files` are (path, mode, content)."""

    task: str
    files: list[tuple[str, int, bytes]]
    sample: int
    variant: Variant
    settings: dict[str, Any]
    environment: dict[str, str]


class RayEngine:
    """Makes attempts on the workers of a cluster; each takes one of its CPUs. Raises `UsageError` without Ray."""

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
        address = os.environ.get("RAY_ADDRESS")
        own_cluster: dict[str, Any] = {} if address else {"num_cpus": parallel, "include_dashboard": False}
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **own_cluster)
        self._attempt = self._ray.remote(_attempt)

    async def make(self, task: Task, sample: int) -> Attempted:
        job = _RayJob(
            task=task.name,
            files=list(task_files(task)),
            sample=sample,
            variant=self._variant,
            settings=person_settings(self._person),
            environment=dict(self._person.environment),
        )
        reference = self._attempt.remote(msgspec.msgpack.encode(job))
        try:
            return msgspec.msgpack.decode(await reference, type=Attempted)
        except asyncio.CancelledError:
            self._ray.cancel(reference, force=True)
            raise

    async def aclose(self) -> None:
        self._ray.shutdown()


def _attempt(data: bytes) -> bytes:
    """Make one attempt, on a worker."""
    job = msgspec.msgpack.decode(data, type=_RayJob)
    with temporary_folder() as folder:
        task = _unpack(job, folder / job.task)
        environment = job.environment | {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "")}
        person = load_config(folder, environment, flags=job.settings, caller="eval")
        return msgspec.msgpack.encode(asyncio.run(_make(person, job.variant, task, job.sample)))


async def _make(person: Config, variant: Variant, task: Task, sample: int) -> Attempted:
    async with aclosing(LocalEngine(person, variant)) as engine:
        return await engine.make(task, sample)


def _unpack(job: _RayJob, folder: Path) -> Task:
    for name, mode, content in job.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode:
            path.write_bytes(content)
            path.chmod(mode)
        else:
            path.symlink_to(os.fsdecode(content))
    (folder / "start").mkdir(exist_ok=True)
    return read_task(folder / "task.toml")
