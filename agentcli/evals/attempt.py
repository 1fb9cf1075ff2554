"""Lets an agent attempt a task: in a fresh copy, confined, with a session and a home of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from agentcli.agent.events import Done, TurnFailed
from agentcli.agent.ops import Interrupt
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.conversation.mentions import with_attachments
from agentcli.conversation.schema import packed
from agentcli.errors import UsageError
from agentcli.evals.checks import check, measures, record_for_check
from agentcli.evals.outcome import Attempted, End, Outcome, Variant
from agentcli.evals.task import BUNDLED, Task
from agentcli.evals.temporary_folders import remove_abandoned, temporary_folder
from agentcli.extensions.hooks.config import Hooks
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.provider import Provider
from agentcli.llm.providers.scripted import ScriptedProvider, read_script
from agentcli.models.choice import Models
from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import Paths
from agentcli.setup.options import Extras

# The person's settings that count: how models are reached. All else would make results depend on who runs them.
_FROM_PERSON = ("provider", "providers", "models", "local", "retry", "tokens", "sandbox")
_FROM_TASK = frozenset(("compaction", "tools", "skills", "agents", "memory", "data"))
# Errors that say nothing about the agent.
_FAILURES = frozenset(
    "AuthError BillingError ModelNotFound RateLimit Overloaded ServerError Timeout ConnectionFailed NoKey "
    "StorageError".split()
)
_NOTHING = [{"text": "I have done nothing."}]
_UPLOAD = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"  # of any commit, also one that no branch leads to
_REPOSITORY_VARIABLES = frozenset("GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR".split())
_END_S = 30.0  # for an interrupted turn to end


class LocalEngine:
    """Makes attempts with one variant in this process; `person` is the configuration of whoever runs them."""

    def __init__(self, person: Config, variant: Variant) -> None:
        self._person = person
        self._variant = variant
        self._models = Models(person)  # shared, so that all use one connection, and one server of the embedded model

    async def aclose(self) -> None:
        await self._models.aclose()

    async def make(self, task: Task, sample: int) -> Attempted:
        """Attempt a task once. Raises `UserError` for a fault of the task, the settings or this machine."""
        await asyncio.to_thread(remove_abandoned)
        with temporary_folder() as room:
            await asyncio.to_thread(_fill, task, room / "work")
            config = self._config(task, room)
            provider = self._provider(task)
            async with self._session(provider, config) as session:
                began = time.monotonic()
                limit_s = self._variant.time_s or task.limits.time_s
                info = getattr(provider, "info", None) or self._models.info(self._variant.model)
                ends, timed_out = await _answer_prompts(session, task, limit_s, is_small=info.small)
                seconds = round(time.monotonic() - began, 3)
                entries = [*session.snapshot().conversation.entries]
                total = session.state.meter.total
            end, error, failure = _classify_end(ends[-1] if ends else None)
            outcome = Outcome(
                task.name,
                sample,
                end="timeout" if timed_out else end,
                error=error,
                seconds=seconds,
                failure=failure,
                cost_usd=total.whole_usd,
                usage=total.usage,
                **measures(entries, ends, str(config.cwd)),
            )
            if not outcome.failure:
                record = msgspec.json.encode(record_for_check(entries, ends))
                passed, score, reason = await check(task, config, record, room)
                outcome = structs.replace(outcome, passed=passed, score=score, reason=reason)
            return Attempted(outcome, packed(entries))

    def _config(self, task: Task, room: Path) -> Config:
        """Return the settings of an attempt: the person's models, the task's limits, and the variant over both."""
        person, limits = self._person, {"max_turns": task.limits.turns, "max_budget_usd": task.limits.cost_usd}
        if wrong := sorted(task.settings.keys() - _FROM_TASK):
            raise UsageError(
                f"{task.folder / 'task.toml'}: a task sets only {', '.join(sorted(_FROM_TASK))}, not {wrong[0]}."
            )
        flags: dict[str, Any] = {"permissions": {"mode": "auto"}, "limits": limits}
        for layer in (person_settings(person), task.settings, self._variant.settings, {"mcp": {"enabled": False}}):
            flags = _merged(flags, layer)
        masked = [*person.settings.sandbox.masked, *flags["sandbox"].get("masked", ()), str(BUNDLED)]
        masked.append(str(task.folder.parent))
        if task.repository is not None:  # its later commits hold the solution
            masked.append(str(Path(task.repository.path).absolute()))
        flags = _merged(flags, {"sandbox": {"masked": masked}})
        paths = Paths(room / "config", room / "state", room / "cache")
        environment = {**person.environment, "HOME": str(room / "home")}
        for variable in [name for name in environment if name.startswith("AGENTCLI_")]:
            del environment[variable]
        (room / "home").mkdir()
        config = load_config(room / "work", environment, paths=paths, flags=flags, caller="eval")
        return structs.replace(config, kept_keys=person.kept_keys, uses_project=True)

    @asynccontextmanager
    async def _session(self, provider: Provider, config: Config) -> AsyncIterator[Session]:
        variant = self._variant
        extras = Extras(
            system_prompt=variant.system_prompt,
            append_system_prompt=variant.append_system_prompt,
            skill_folders=tuple(Path(folder) for folder in variant.skills),
        )
        builder = Builder(config, store=SqliteSessions(config.paths.sessions), extras=extras)
        builder.hooks = Hooks(config, is_bare=True, tell=lambda text: None)  # a copy's hooks would not be confined
        async with aclosing(builder):
            session = await builder.build_session(model=builder.models.add_provider(provider))
            try:
                yield session
            finally:
                await session.close()

    def _provider(self, task: Task) -> Provider:
        model = self._variant.model
        if model == "scripted/nothing":
            return ScriptedProvider(_NOTHING * len(task.prompts))
        if model == "scripted/reference":
            return ScriptedProvider(read_script(task.folder / "reference.jsonl"))
        if model.startswith("scripted/"):
            return ScriptedProvider(read_script(Path(model.removeprefix("scripted/"))))
        return self._models.provider(model)


def person_settings(person: Config) -> dict[str, Any]:
    """Return the person's settings that count, nested like config.toml."""
    return {key: msgspec.to_builtins(getattr(person.settings, key)) for key in _FROM_PERSON}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Join tables key by key; of other values the one above counts."""
    joined = dict(below)
    for key, value in above.items():
        held = joined.get(key)
        joined[key] = _merged(held, value) if isinstance(held, Mapping) and isinstance(value, Mapping) else value
    return joined


def _fill(task: Task, work: Path) -> None:
    """Make the copy in which the agent works. Raises `UsageError`."""
    if task.repository is None:
        shutil.copytree(task.folder / "start", work, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        return
    # Not cloned: later commits, which hold the solution, must not be in the copy. No template brings hooks.
    path = str(Path(task.repository.path).absolute())
    commit = _git(task, "-C", path, "rev-parse", "--verify", f"{task.repository.commit}^{{commit}}")
    here = ("-C", str(work))
    _git(task, "init", "--quiet", "--template=", str(work))
    _git(task, *here, "fetch", "--quiet", "--no-tags", "--depth=1", f"--upload-pack={_UPLOAD}", path, commit.strip())
    _git(task, *here, "checkout", "--quiet", "-B", "main", commit.strip())
    (work / ".git" / "FETCH_HEAD").unlink()  # names the clone


def _git(task: Task, *arguments: str) -> str:
    """Run git, apart from any repository that the caller is in, and without hooks or work that outlasts it."""
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
    environment = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}
    command, nothing = ["git", *settings, *arguments], subprocess.DEVNULL
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=nothing, env=environment)
    if done.returncode != 0:
        raise UsageError(f"{task.name}: `git {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


async def _answer_prompts(
    session: Session, task: Task, limit_s: float, *, is_small: bool
) -> tuple[list[Done | TurnFailed], bool]:
    """Return the ends of the turns, and True if the time ran out. A turn that failed is the last one."""
    ends: list[Done | TurnFailed] = []
    try:
        async with asyncio.timeout(limit_s):
            for prompt in task.prompts:
                if prompt.split()[0] == "/compact":
                    await session.compact(prompt.removeprefix("/compact").strip())
                    continue
                workspace = session.snapshot().workspace
                ends.append(await session.answer(with_attachments(prompt, workspace, bare_names=is_small)))
                if isinstance(ends[-1], TurnFailed) or ends[-1].reason not in ("end_turn", "max_tokens"):
                    break
    except TimeoutError:
        session.submit(Interrupt())
        with suppress(TimeoutError):  # what is stuck ends with the session
            async with asyncio.timeout(_END_S):
                await session.idle()
        return ends, True
    return ends, False


def _classify_end(last: Done | TurnFailed | None) -> tuple[End, str, str]:
    """Return the end, its error, and the failure if a provider or this machine is to blame for the error."""
    if isinstance(last, Done):
        return ("interrupted" if last.reason == "declined" else last.reason), "", ""
    error, kind = (last.error, last.error_type) if last else ("", "")
    return "error", error, error if kind in _FAILURES else ""
