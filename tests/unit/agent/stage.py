"""A session on a stage: the scripted model plays, the test is the person, and everything that is told is kept.

async with on_stage(tmp_path, [{"text": "Hi."}]) as stage:
    done = await stage.ask("Hello")
assert done.text == "Hi."
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from agentcli.agent.accounting import Budgets
from agentcli.agent.calls.model import CallServices, SessionCalls
from agentcli.agent.calls.report import Mask
from agentcli.agent.events import Done, Event, TurnFailed
from agentcli.agent.interfaces import NEWEST, AppendedEntries, GrantStore, NoHooks, SessionLog, TurnHooks
from agentcli.agent.ops import Approve, Op, Prompt
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules, parse_rule
from agentcli.agent.runtime import ContextControl, ModelAccess, Runtime, TurnLimits, unchanged
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState, ModelChoice, restore_state
from agentcli.agent.steps.messages import usual_steps
from agentcli.conversation.entries import Assistant, Body, Entry, Paid, Result, Retracted, Rewound, User
from agentcli.errors import ToolError
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.infra.shared import FileLocks
from agentcli.llm.messages import Block, Message, Text, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix, Provider, RetryPolicy
from agentcli.llm.providers.scripted import ScriptedProvider
from agentcli.safety.secrets.masking import Masker
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.tool import Effect, Tool, ToolContext, ToolOutput, ToolRegistry
from agentcli.tools.workspace import Workspace
from tests.transcripts import is_valid

E = TypeVar("E")
PATIENCE_S = 60.0
SOON = RetryPolicy(max_retries=3, initial_delay=0.001)


class LogAround:
    """A log around another one, for tests of what is slow or fails."""

    def __init__(self, log: SessionLog) -> None:
        self.log = log
        self.session_id = log.session_id

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> AppendedEntries:
        return self.log.append(*bodies, parent_id=parent_id)

    def is_wanted(self) -> bool:
        return self.log.is_wanted()

    async def close(self) -> None:
        await self.log.close()


class Named(Struct, frozen=True):
    name: str = ""


@dataclass
class Works:
    """A tool's work, which a test can watch and hold up. `order` holds what began and ended."""

    order: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def tool(self, name: str, effect: Effect = "read", *, held: bool = False, says: str = "") -> Tool:
        """A tool that notes its start and end; a `held` one waits for the gate, having shown "half"."""

        async def run(given: Named, context: ToolContext) -> ToolOutput:
            self.order.append(f"+{given.name}")
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.begun.set()
            try:
                if held:
                    context.emit("half")
                    await self.gate.wait()
                else:
                    await asyncio.sleep(0)
            finally:
                self.running -= 1
            self.order.append(f"-{given.name}")
            return ToolOutput(says or f"did {given.name}")

        return Tool(name, "Works.", Named, run, effect, source="test")


def failing_tool(name: str, error: Exception, effect: Effect = "none") -> Tool:
    async def run(given: Named, context: ToolContext) -> ToolOutput:
        raise error

    return Tool(name, "Fails.", Named, run, effect, source="test")


def refusing_preview(name: str) -> Tool:
    async def run(given: Named, context: ToolContext) -> ToolOutput:
        return ToolOutput("ran")

    async def dry_run(given: Named, context: ToolContext) -> str:
        raise ToolError("It cannot apply.", kind="not_found")

    return Tool(name, "Cannot apply.", Named, run, "edit", source="test", dry_run=dry_run)


def call(tool: str, name: str = "", *, id: str = "", **more: Any) -> dict[str, Any]:
    """One entry of a script's `tool_calls`."""
    return {"name": tool, "input": {"name": name, **more} if name or more else {}, **({"id": id} if id else {})}


@dataclass
class Stage:
    session: Session
    provider: ScriptedProvider
    workspace: Path
    events: list[Event] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, op: Op) -> None:
        self.session.submit(op)

    def say(self, text: str) -> None:
        self.submit(Prompt((Text(text),)))

    async def ask(self, text: str) -> Any:
        """Say something and wait until its turn has ended; gives `Done` or `TurnFailed`."""
        ends = self.count(Done) + self.count(TurnFailed)
        self.say(text)
        return await self.ended(ends + 1)

    async def ended(self, number: int = 1) -> Any:
        """Wait for the end of the turn with that number; gives `Done` or `TurnFailed`."""
        await self._until(lambda: len(self.ends) >= number, f"the end of turn {number}")
        return self.ends[number - 1]

    @property
    def ends(self) -> list[Done | TurnFailed]:
        return [event for event in self.events if isinstance(event, Done | TurnFailed)]

    async def heard(self, kind: type[E], number: int = 1) -> E:
        """Wait until that many events of a kind have come, and give the last of them."""
        await self._until(lambda: self.count(kind) >= number, f"{number} {kind.__name__}")
        return self.of(kind)[number - 1]

    async def _until(self, come: Any, what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not come():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{what} did not come; heard {self.events}") from None

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def count(self, kind: type) -> int:
        return len(self.of(kind))

    def listen(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def entries(self) -> list[Entry]:
        return self.session.state.conversation.entries

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the next request would hold, before any repair."""
        return self.session.state.conversation.messages

    @property
    def is_valid(self) -> bool:
        return is_valid(self.messages)

    @property
    def results(self) -> dict[str, ToolResult]:
        return {entry.id: entry.body.result for entry in self.entries if isinstance(entry.body, Result)}

    def said(self, kind: type = Assistant) -> list[str]:
        """The texts of the replies (or of what the person and the program said, with `User`)."""
        return [text_of(entry.body.content) for entry in self.entries if isinstance(entry.body, kind)]  # type: ignore[attr-defined]

    def happened(self) -> list[str]:
        """Entries about what was taken back, by kind; for a request that left no reply its reason."""
        bodies = [entry.body for entry in self.entries if isinstance(entry.body, Retracted | Rewound | Paid)]
        return [getattr(body, "reason", type(body).__name__.lower()) for body in bodies]

    def prompts(self) -> list[str]:
        bodies = [entry.body for entry in self.entries]
        return [body.text for body in bodies if isinstance(body, User) and not body.is_reminder]

    def reminders(self) -> list[str]:
        bodies = [entry.body for entry in self.entries]
        return [body.text for body in bodies if isinstance(body, User) and body.is_reminder]


def text_of(content: Iterable[Block]) -> str:
    return "".join(block.text for block in content if isinstance(block, Text))


def answering(stage: Stage, **how: Any) -> asyncio.Task[None]:
    """Answer every approval question with these fields of `Approve`."""
    from agentcli.agent.events import QuestionEvent

    async def answer() -> None:
        answered = 0
        while True:
            request = await stage.heard(QuestionEvent, answered + 1)
            answered += 1
            stage.submit(Approve(request.id, **how))

    return asyncio.create_task(answer())


@asynccontextmanager
async def on_stage(
    folder: Path,
    replies: Iterable[Mapping[str, Any]] = (),
    *,
    tools: Iterable[Tool] = (),
    mode: Mode = "default",
    can_ask: bool = False,
    limits: TurnLimits = TurnLimits(),
    budgets: Budgets | None = None,
    hooks: TurnHooks | None = None,
    max_parallel: int = 8,
    info: ModelInfo | None = None,
    others: Mapping[str, Provider] | None = None,
    fallback_model: str = "",
    provider: ScriptedProvider | None = None,
    resolve: Any = None,
    log: SessionLog | None = None,
    entries: Iterable[Entry] = (),
    grants: GrantStore | None = None,
    deny: Iterable[str] = (),
    retry: RetryPolicy = SOON,
    temperature: float | None = None,
    effort: Any = None,
    context_transform: Any = unchanged,
) -> AsyncIterator[Stage]:
    """A session in `folder`/work with the built-in tools and `tools`.

    `others` are further models by `provider/model`; `entries` is what the log holds already.
    """
    work = folder / "work"
    work.mkdir(exist_ok=True)
    played = provider or ScriptedProvider(replies, info=info)
    models: dict[str, Provider] = {"scripted/script": played, **(others or {})}

    async def by_name(state: AgentState) -> tuple[Provider, ModelInfo]:
        found = models[state.model.name]
        return found, getattr(found, "info", ModelInfo(found.model, found.name))

    registry = ToolRegistry([*builtin_tools(), *tools])
    sandbox = LocalSandbox([work], environment={"PATH": "/usr/bin:/bin"}, job_folder=folder / "jobs")
    log = log or await MemorySessions().create(cwd=work)
    rules = Rules(deny=[parse_rule(rule) for rule in deny])
    state = AgentState(model=ModelChoice(name="scripted/script"), mode=mode, rules=rules)
    state.budgets = budgets or state.budgets
    session = Session(
        restore_state(state, entries),
        Runtime(
            models=ModelAccess(
                resolve=resolve or by_name,
                prefix_for=lambda info, known: Prefix("You help.", known.specs()),
                fallback=fallback_model,
                retry=retry,
                temperature=temperature,
                effort=effort,
            ),
            calls=SessionCalls(
                services=CallServices(
                    workspace=Workspace(cwd=work, sandbox=sandbox),
                    locks=FileLocks(work.parent / "locks"),
                    grants=grants,
                    mask=Mask(Masker),
                    max_parallel=max_parallel,
                ),
                tools=registry,
            ),
            log=log,
            steps=usual_steps(),
            limits=limits,
            context=ContextControl(transform=context_transform),
            hooks=hooks or NoHooks(),
        ),
        can_ask=can_ask,
    )
    stage = Stage(session, played, work)
    events = session.subscribe()

    async def follow() -> None:
        async for event in events:
            stage.listen(event)

    following = asyncio.create_task(follow())
    try:
        yield stage
    finally:
        await session.close()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
