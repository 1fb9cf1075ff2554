"""Runs a recorded session again in a copy of its workspace, and collects what comes otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from msgspec import Struct, structs

from agentcli.agent.events import TurnFailed
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.permissions.modes import parse_mode, untold_mode
from agentcli.agent.runtime import Limits, Prefix
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.conversation.cache_ledger import prefix_hash
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Compaction, Entry, Result, User
from agentcli.errors import UsageError
from agentcli.extensions.hooks.config import Hooks
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.llm.messages import Block, Message, Text, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request
from agentcli.replay.playing import NO_MORE, Closed, OneSession, RecordedCalls, RecordedLog, RecordedModel
from agentcli.replay.recording import Recorded, between, turns_of
from agentcli.replay.scratch import Scratch
from agentcli.settings.load import Config
from agentcli.settings.paths import project_root
from agentcli.settings.structs import BudgetSettings, MCPSettings, Settings
from agentcli.setup.checkpoints import stored_checkpoints
from agentcli.setup.extras import Extras
from agentcli.setup.sandbox import make_sandbox
from agentcli.setup.session_choice import NEW
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.summary import call_title

Kind = Literal["tool_result", "prompt", "cost", "calls"]
LONGEST_TITLE = 100  # characters
_MEMORY_NOTE = "<system-reminder>Memory files of this project"  # of files that no checkpoint has


class Difference(Struct, frozen=True):
    """`what` differs in a turn: as it was recorded, and as it came now."""

    turn: int
    kind: Kind
    what: str
    recorded: str
    replayed: str


class Report(Struct, frozen=True):
    """What was played: turns, requests, calls made again; by tool how many of which the recorded result was used."""

    session_id: str
    turns: int
    requests: int
    calls: int
    differences: list[Difference]
    not_replayed: dict[str, int]


async def replay(config: Config, info: SessionInfo, entries: Sequence[Entry]) -> Report:
    """Play a session again; `config` is of its folder, which is only read. Raises `UserError`."""
    if not (turns := turns_of(entries)):
        raise UsageError(f"Session {info.id} holds no prompt: there is nothing to replay.")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="agentcli-replay-", ignore_cleanup_errors=True)))
        checkpoints = stored_checkpoints(config, info.id)
        stack.push_async_callback(checkpoints.aclose)
        scratch = Scratch(project_root(config.cwd), folder / "workspace", checkpoints.content)
        scratch.fill(config.settings.checkpoints.exclude, (config.paths.state, config.paths.cache))
        scratch.put_back(change for turn in turns for change in turn.changes())
        builder = Builder(config, store=MemorySessions())
        stack.push_async_callback(builder.aclose)
        player = _Player(builder, scratch, info, entries)
        await player.open(stack, turns[0], folder)
        for turn in turns:
            scratch.apply(between(entries, turn))
            scratch.put_back(turn.changes())
            await player.play(turn)
        return player.report(len(turns))


class _Player:
    """Holds the session that is played, and what was found so far."""

    def __init__(self, builder: Builder, scratch: Scratch, info: SessionInfo, entries: Sequence[Entry]) -> None:
        self._builder = builder
        self._scratch = scratch
        self._info = info
        self._entries = entries
        self._recorded = Conversation()  # as it was at the newest request
        self._compared = 0  # of its messages so many were compared
        self._turn = Recorded(0, 0, ())
        self._found: list[Difference] = []
        self._not_replayed: Counter[str] = Counter()
        self._requests = self._calls = 0
        self._model = RecordedModel(builder.models.info, self._compare_request)
        self._hooks = RecordedCalls(scratch.root, scratch.copy, scratch.apply)
        self._log = RecordedLog(info.id)
        self._session: Session

    async def open(self, stack: AsyncExitStack, first: Recorded, folder: Path) -> None:
        """Build the session in the copy: confined, without network, hooks, MCP servers, and limits."""
        told = [entry.body for entry in self._entries[: first.start]]
        mode = first.mode or ("default" if untold_mode("plan", told) else "plan")
        config = _config_of_copy(self._builder.config, self._scratch, folder, mode)
        self._model.begin(first)
        rules = Builder(config, store=MemorySessions()).rules()
        sandbox = Closed(make_sandbox(config, (config.cwd,), session_id=self._info.id, rules=rules, profile=None))
        if not sandbox.confines:
            raise UsageError(
                "Nothing confines commands on this machine, so they are not run again: see agentcli doctor."
            )
        extras = Extras(
            call_hooks=(self._hooks,),
            resolve=self._model.resolve,
            context_policy=self._compaction,
            sandbox=sandbox,
        )
        builder = Builder(config, store=OneSession(self._log), extras=extras, can_ask=True)
        builder.hooks = Hooks(config, is_bare=True, tell=lambda text: None)
        stack.push_async_callback(builder.aclose)
        session = await builder.build_session(NEW, model=builder.models.bring(self._model))
        stack.push_async_callback(session.close)
        tools = self._builder.offered_tools()
        runtime = session.runtime
        runtime.prefix_for = lambda info, _: self._prefix(info, tools)
        runtime.limits, runtime.most_breaks = Limits(max_turns=1_000_000), 1_000_000
        runtime.calls.tools = ToolRegistry(map(self._hooks.playing, tools))
        runtime.calls.history.ends_loops = False
        self._session = session

    def _prefix(self, info: ModelInfo, tools: ToolRegistry) -> Prefix:
        """That of requests in the session's own folder."""
        return self._builder.opening.prefix(info, tools)

    async def play(self, turn: Recorded) -> None:
        """Play one turn from where the recording was then, and compare what came of it."""
        session, state, entries = self._session, self._session.state, self._entries
        self._turn, before = turn, entries[: turn.start]
        if turn.number == 1:  # the session tells the notes of its start anew
            before = [entry for entry in before if not isinstance(entry.body, User)]
        else:
            state.notes.clear()
        conversation = state.conversation = Conversation(before)
        conversation.queue.follow_ups.clear()
        conversation.queue.steering.clear()
        if (last := conversation.last_reply) is not None and isinstance(last.body, Assistant):
            state.last_used = f"{last.body.provider}/{last.body.model}"
        self._compared = len(conversation.messages) and len(conversation.messages) - 1
        state.mode = parse_mode(turn.mode) if turn.mode else state.mode
        session.runtime.calls.ask = self._hooks.ask if turn.asked else None
        self._model.begin(turn)
        self._hooks.begin(turn)
        self._log.begin(turn, conversation.path[-1].id if conversation.path else None)
        end = await session.answer(turn.prompt.content)
        await session.idle()
        self._compare_calls(conversation)
        self._compare_end(end.error if isinstance(end, TurnFailed) else "")

    async def _compaction(self, conversation: Conversation, **_: object) -> Compaction | None:
        """The one that was made before the request that comes now."""
        place = self._model.next_place or 0
        start = max((at for at, _ in self._turn.replies if at < place), default=self._turn.start)
        found = (entry.body for entry in self._entries[start:place] if isinstance(entry.body, Compaction))
        made = next(found, None)
        if made is not None:
            self._compared = 0
        return made

    def _compare_request(self, request: Request, place: int, reply: Assistant) -> None:
        self._requests += 1
        self._recorded.add(*self._entries[len(self._recorded.entries) : place])
        self._compare_cost(reply)
        if any(one.turn == self._turn.number and one.kind == "prompt" for one in self._found):
            return
        now = prefix_hash(request)
        for what, recorded, replayed in zip(
            ("tools", "system text"), reply.prefix.split("."), now.split("."), strict=False
        ):
            if recorded and recorded != replayed:
                self._note("prompt", what, f"hash {recorded}", f"hash {replayed}")
                return
        then, sent = self._recorded.valid_messages(), request.messages
        for number in range(min(self._compared, len(then), len(sent)), max(len(then), len(sent))):
            one, other = (self._shown(messages[number : number + 1]) for messages in (then, sent))
            if one != other:
                role = (then[number : number + 1] or sent[number : number + 1])[0].role
                self._note("prompt", f"message {number + 1} ({role})", one, other)
                return
        self._compared = max(0, len(sent) - 1)

    def _shown(self, messages: Sequence[Message]) -> str:
        """A message without what differs by itself; results are compared for themselves."""
        return "\n".join(self._normal(text) for m in messages for block in m.content if (text := _text_of(block)))

    def _compare_cost(self, reply: Assistant) -> None:
        now, then = self._model.info.cost(reply.usage), reply.cost_usd
        if now == then or (now is not None and then is not None and abs(now - then) <= 1e-6 * max(now, then)):
            return
        self._note("cost", f"{reply.provider}/{reply.model}", _usd(then), _usd(now))

    def _compare_calls(self, conversation: Conversation) -> None:
        made = {
            entry.body.result.tool_use_id: entry.body
            for entry in conversation.entries[self._turn.start :] if isinstance(entry.body, Result)
        }  # fmt: skip
        for id, use in self._turn.calls.items():
            match self._turn.fate(id):
                case "again" if id in made:
                    self._calls += 1
                    then, now = self._told(self._turn.results[id]), self._told(made[id])
                    if then != now:
                        self._note("tool_result", call_title(use.name, use.input, LONGEST_TITLE), then, now)
                case "recorded":
                    self._not_replayed[use.name] += 1
                case _:
                    pass

    def _told(self, result: Result) -> str:
        return self._normal(f"{'[error] ' if result.result.is_error else ''}{result.result.text}")

    def _compare_end(self, error: str) -> None:
        replies = len(self._turn.replies)
        if error and error != NO_MORE and self._turn.replies[-1:] and not self._ended_broken():
            self._note("calls", "the turn's end", "it ended", error)
        elif self._model.left:
            self._note("calls", "requests", str(replies), str(replies - self._model.left))
        elif self._model.is_overdrawn and replies and not self._last_has_calls():
            self._note("calls", "requests", str(replies), f"{replies + 1} or more")

    def _ended_broken(self) -> bool:
        return self._turn.replies[-1][1].stop_reason == "interrupted"

    def _last_has_calls(self) -> bool:
        return bool(Message("assistant", self._turn.replies[-1][1].content).tool_uses)

    def _note(self, kind: Kind, what: str, recorded: str, replayed: str) -> None:
        self._found.append(Difference(self._turn.number, kind, what, recorded, replayed))

    def _normal(self, text: str) -> str:
        text = text.replace(str(self._scratch.copy), str(self._scratch.root))
        return _OUR_TIMES.sub("…", text) if text.startswith(("[", "<system-reminder>")) else text

    def report(self, turns: int) -> Report:
        return Report(self._info.id, turns, self._requests, self._calls, self._found, dict(self._not_replayed))


_OUR_TIMES = re.compile(r"\b\d{4}-\d\d-\d\d\b|\b\d+(?:\.\d+)? (?:ms|s|min)\b|\bpid \d+")


def _text_of(block: Block) -> str:
    match block:
        case Text(text) if text.startswith(_MEMORY_NOTE):
            return ""
        case Text(text):
            return text
        case ToolResult():
            return ""
        case _:
            return repr(block)


def _usd(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:.6f}"


def _config_of_copy(config: Config, scratch: Scratch, folder: Path, mode: str) -> Config:
    settings: Settings = config.settings
    profile = "workspace-write" if settings.sandbox.profile == "danger-full-access" else settings.sandbox.profile
    permissions = structs.replace(settings.permissions, additional_directories=(), mode=mode)
    settings = structs.replace(
        settings,
        sandbox=structs.replace(settings.sandbox, profile=profile, hosts=(), writable=()),
        permissions=permissions,
        checkpoints=structs.replace(settings.checkpoints, enabled=False),
        budgets=BudgetSettings(),
        mcp=MCPSettings(enabled=False),
        observability=structs.replace(settings.observability, traces=False, metrics=False, logs=False),
    )
    paths = structs.replace(config.paths, state=folder / "state", cache=folder / "cache")
    cwd = scratch.copy / config.cwd.relative_to(scratch.root)
    return structs.replace(config, settings=settings, paths=paths, cwd=cwd)
