"""The library's main class: an agent that works in a directory and answers prompts from Python."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self

from agentcli.agent.calls.once import KEY_TTL_S, DirectCall, KeyedCalls, call_directly, store_results
from agentcli.agent.events import ClientToolRequested, Done, Event, Output, ToolFinished, TurnFailed
from agentcli.agent.interfaces import LOCK_TIMEOUT_S, ONE_SHOTS
from agentcli.agent.ops import ClientResult, GoOn, Interrupt, Pause, Prompt
from agentcli.agent.session import Session
from agentcli.agent.steps.messages import set_answer_schema
from agentcli.agent.turn_records import TurnRecord, turn_records
from agentcli.app import Builder
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry
from agentcli.conversation.schema import pack_conversation, unpack_conversation
from agentcli.errors import AgentcliError, StorageError, UsageError
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.library.approvals import Approver, Callbacks, running_callbacks
from agentcli.library.history import HistoryForm, form_of, read_history, write_messages
from agentcli.library.options import AgentOptions, accept_old_names, agent_config, session_options, stores_of
from agentcli.library.output import OutputType, output_schema, typed_end
from agentcli.library.prompts import PromptOrder, Results, read_prompt, recording
from agentcli.llm.messages import Block, Content, ToolUse, Usage
from agentcli.llm.provider import Provider, ToolSpec
from agentcli.llm.token_encoders import AnyMessage
from agentcli.settings.structs import PermissionSettings
from agentcli.setup.options import SessionChoice
from agentcli.tools.tool import Tool

_ONLY_MAIN = "Subagents cannot run this tool. Leave it to the main agent."  # `run` cannot answer during a turn

log = logging.getLogger("agentcli")
log.addHandler(logging.NullHandler())  # without it, Python prints warnings to the stderr of programs without logging


class AgentFailed(AgentcliError):
    """A prompt could not be answered; `is_retryable` is True if trying again may help."""

    def __init__(self, failure: TurnFailed) -> None:
        super().__init__(failure.error)
        self.is_retryable = failure.is_retryable


class Agent(Generic[Output]):
    """A conversation with a model that works in `cwd`.

        async with Agent("anthropic/claude-sonnet-5-5") as agent:
            print((await agent.run("What does this project do?")).text)

    `model` is `provider/model` (empty: the model that the command line would choose), or a provider. `instructions`
    replace the system text. `tools` are `Tool`s, or functions as `@tool` accepts them.

    The conversation lives as long as the agent. With a `conversation`, an id of your own, the store in `options` keeps
    it: the agent continues the conversation with that id, or begins it. To keep it yourself, pass it as `history`,
    messages in the form of the Messages API or of Chat Completions, and get later ones from `new_messages()`. Calls in
    a history are not run again.

    `Done.output` is an instance of `output_type`: a dataclass, TypedDict, msgspec struct, pydantic model, a type such
    as `list[City]`, a union, or JSON for a JSON Schema. The model gets two tries to correct an answer.

    `approve` gets the questions of the permission mode, such as a `CommandApproval`, one at a time, and returns
    `Allow(…)`, `Deny(…)` or a bool; without it, calls that would ask are denied. An error in it denies the call, stops
    the turn, and is raised by `run`, `stream` and `call_tool`. A turn's end cancels `approve`. `permissions` is
    the name of the mode, or a `PermissionSettings` with rules. `options` hold everything else.

    Warnings go to the logger `agentcli`. Raises `UserError` for a wrong model, setting or tool.
    """

    @accept_old_names
    def __init__(
        self,
        model: str | Provider = "",
        *,
        instructions: str | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        output_type: OutputType[Output] | None = None,
        conversation: str = "",
        history: Sequence[AnyMessage] | None = None,
        approve: Approver | None = None,
        permissions: str | PermissionSettings = "default",
        cwd: str | Path = ".",
        options: AgentOptions = AgentOptions(),
    ) -> None:
        config = agent_config(options, cwd, permissions)
        # Keeps the sessions if the caller gives no `SessionStore`. With a `ConversationStore`, the conversation is
        # loaded from that store into memory, and saved to it.
        self._memory = MemorySessions()
        self._conversation_store, store = stores_of(options, conversation, has_history=history is not None)
        self._history, self._messages_form = history or (), form_of(history or ())
        self._newest_entries: list[Entry] = []  # the newest prompt and what followed
        can_ask = approve is not None or options.answer is not None
        self._callbacks = Callbacks(approve, options.answer) if can_ask else None
        setup = session_options(options, instructions, tools)
        self._builder = Builder(
            config, store=store or self._memory, options=setup, can_ask=can_ask, on_notice=log.warning
        )
        chosen = options.provider or model
        self._model = chosen if isinstance(chosen, str) else self._builder.models.add_provider(chosen)
        self._answer_schema = None if output_type is None else output_schema(output_type)
        self._options, self._user_id = options, options.user_id
        self._conversation_id = conversation if self._conversation_store is not None else ""
        self._next_session = SessionChoice(new_id=conversation or None, user_id=self._user_id)
        self._session: Session | None = None
        self._conversation = Conversation()  # of the newest session
        self._building, self._prompt_order = asyncio.Lock(), PromptOrder()  # `_building`: held while a session is built
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop of the locks
        self._keyed = KeyedCalls()  # calls with an idempotency key

    async def session(self) -> Session:
        """Return the session itself, built when it is first needed, for operations and events. Raises `UserError`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and self._loop.is_running():
                raise UsageError("This agent is in use in another event loop. Make an Agent for each.")
            self._loop, self._building, self._prompt_order = loop, asyncio.Lock(), PromptOrder()
        async with self._building:
            if self._session is not None and self._session.loop is not loop:  # it belongs to an earlier `asyncio.run`
                await self._leave_session()
            if self._session is None:
                self._session = await self._builder.build_session(await self._choose_session(), model=self._model)
                self._session.runtime.calls.workspace.resources.deps = self._options.deps
                self._conversation = self._session.snapshot().conversation
                if (usage := self._options.usage) is not None:
                    self._session.runtime.collect = partial(usage.add, user_id=self._user_id)
            return self._session

    async def _leave_session(self) -> None:
        """Close the session, which is bound to one event loop. The next one continues the conversation in any loop."""
        session, self._session = self._session, None
        if session is not None:
            if session.snapshot().conversation.entries:
                self._next_session = SessionChoice(how="id", id=session.id)
            await session.close()
        await self._builder.aclose(for_good=False)

    async def _choose_session(self) -> SessionChoice:
        """Return the session to continue or to begin. Raises `UserError`."""
        choice, cwd = self._next_session, self._builder.config.cwd
        if self._history:  # it becomes a session, which is then continued
            bodies = read_history(self._history, self._model or await self._builder.models.default())
            stored = await self._memory.create(cwd=cwd, user_id=self._user_id)
            stored.append(*bodies)
            await stored.close()
            self._history = ()
            return SessionChoice(how="id", id=stored.session_id)
        if (entries := await self._load_entries()) is not None:  # copied to the store that the builder uses
            self._memory.add_session(self._conversation_id, entries, cwd=cwd, user_id=self._user_id)
        if choice.how == "new" and choice.new_id:  # the caller's own id: continue that conversation if it is stored
            with suppress(StorageError):  # nothing is stored yet; other faults show when the session is created
                info, _ = await self._builder.store.load(choice.new_id)
                if info.id == choice.new_id:  # a store also finds a session by the beginning of its id
                    self._check_owner(info.id, info.user_id)
                    return SessionChoice(how="id", id=info.id)
        return choice

    async def _load_entries(self) -> list[Entry] | None:
        """Load the entries from the `ConversationStore`; None if it has none. Raises `StorageError`, `UsageError`."""
        store = self._conversation_store
        if store is None or (data := await store.load(self._conversation_id)) is None:
            return None
        entries, owner = unpack_conversation(data)
        self._check_owner(self._conversation_id, owner)
        return entries

    def _check_owner(self, id: str, owner: str) -> None:
        if owner.removeprefix(ONE_SHOTS) != self._user_id:  # a one-shot belongs to no user
            raise UsageError(f"The conversation {id} does not belong to {self._user_id or 'a user without an id'}.")

    async def _save_entries(self) -> None:
        """Save all entries to the `ConversationStore`, if there is one. Raises `StorageError`."""
        if self._conversation_store is not None and self._session is not None:
            data = pack_conversation(self._session.snapshot().conversation.entries, user_id=self._user_id)
            await self._conversation_store.save(self._conversation_id, data)

    async def reset(self) -> None:
        """Begin a new conversation with the next prompt, and remove the current one from a `ConversationStore`."""
        await self._keyed.cancel()
        if self._session is not None:
            await self._session.close()
            self._session, self._prompt_order, self._conversation = None, PromptOrder(), Conversation()
        if self._conversation_store is not None:
            await self._load_entries()  # raises for another user's conversation, so it is not removed
            await self._conversation_store.reset(self._conversation_id)
            self._memory = self._builder.store = MemorySessions()
        self._history, self._newest_entries = (), []
        self._next_session = SessionChoice(new_id=self._conversation_id or None, user_id=self._user_id)

    async def run(
        self,
        content: Content | Results,
        *,
        attachments: Sequence[str | Path | Block] = (),
        tools: Sequence[ToolSpec] = (),
        stream_id: str = "",
        deps: Any = None,
    ) -> Done[Output]:
        """Answer a prompt, as `stream` does. Raises `AgentFailed`; a partial answer stays in the conversation.

        A turn that needs a `ClientResult` ends: its `Done` has the reason "paused" and the `pending` calls.
        """
        answering = self.stream(content, attachments=attachments, tools=tools, stream_id=stream_id, deps=deps)
        async with aclosing(answering) as events:
            async for event in events:
                match event:
                    case ClientToolRequested(agent_id="main"):  # the caller answers these with its next `run`
                        (await self.session()).submit(Pause())
                    case ClientToolRequested(calls):  # a paused turn would end the subagent that makes these calls
                        for call in calls:
                            (await self.session()).submit(ClientResult(call.id, _ONLY_MAIN, is_error=True))
                    case TurnFailed():
                        raise AgentFailed(event)
                    case Done():
                        return event
        raise AssertionError("a turn ends in Done or TurnFailed")

    async def stream(
        self,
        content: Content | Results,
        *,
        attachments: Sequence[str | Path | Block] = (),
        tools: Sequence[ToolSpec] = (),
        stream_id: str = "",
        deps: Any = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of answering a prompt; the last is `Done` or `TurnFailed`. Closing the stream interrupts.

        `content` is the text, in which `@path` attaches files of the workspace, or a list of texts and blocks.
        `attachments` are more files, in any folder (paths are relative to `cwd`), or blocks: images, PDFs, text. `deps`
        becomes `ToolContext.deps` in this prompt's calls. The next prompt waits for the end of this one, or raises
        `UsageError` if nobody reads this stream any more.

        `tools` are tools of the caller, from this prompt on: each of their calls comes in a `ClientToolRequested`, and
        the turn waits until a `ClientResult` is submitted to the session. If the stream is closed earlier, these calls
        stay open: any agent on the same conversation, even in another process, continues with their `ClientResult`s as
        the `content`, all at once or one after another. An ordinary prompt marks open calls as not run. With a
        `stream_id`, the agent's event store gets the events too, as objects of the JSON output.
        """
        store = self._options.event_store
        if stream_id and store is None:
            raise UsageError("A stream_id needs an event store: Agent(…, options=AgentOptions(event_store=…)).")
        workspace = (await self.session()).snapshot().workspace
        blocks, results = await asyncio.to_thread(read_prompt, content, attachments, workspace)
        last: Done | TurnFailed | None = None
        async with (
            self._hold_session(results, tools) as (session, pending),
            recording(session, store, stream_id) if store and stream_id and not pending else nullcontext(),
            aclosing(session.subscribe()) as events,
            running_callbacks(self._callbacks, session) as answer_if_asked,
        ):
            turn_start = len(session.snapshot().conversation.path) - len(results)  # `_hold_session` stored them
            op = GoOn(if_unanswered=True) if results else Prompt(blocks, tools=tuple(tools))
            begin = partial(session.submit, op)
            if pending:  # the turn goes on only once all its calls have results, so it ends again here
                begin = partial(session.publish, Done("", 0, Usage(), "paused", 0.0, pending=pending))
            self._prompt_order.run_in_turn(begin, deps)
            try:
                async for event in events:
                    if isinstance(event, Done | TurnFailed):
                        last = typed_end(event, self._answer_schema)
                        break
                    if isinstance(event, ClientToolRequested):  # save now: the program may end before the result comes
                        await self._save_entries()
                    self._prompt_order.run_in_turn(partial(answer_if_asked, event), deps)
                    with self._prompt_order.handling_event():
                        yield event
            finally:
                if last is None:  # the stream was closed, or its task cancelled
                    session.submit(Pause())  # keeps the client's calls open, which `Interrupt` would end
                    session.submit(Interrupt())
                    await session.idle()
                self._newest_entries = session.snapshot().conversation.path[turn_start:]
                await self._save_entries()
        if last is not None:  # yielded after the lock is free, because a reader may never resume this generator
            yield last

    @asynccontextmanager
    async def _hold_session(
        self, results: Sequence[ClientResult], tools: Sequence[ToolSpec]
    ) -> AsyncIterator[tuple[Session, tuple[ToolUse, ...]]]:
        """Store `results`, and yield the session, locked for one turn, with the calls that still lack a result."""
        async with self._prompt_order.hold():  # against other prompts of this agent
            session = await (self._store_results(results, tools) if results else self.session())
            set_answer_schema(session.runtime.steps, self._answer_schema)
            # Without results, a prompt follows. It gives all open calls the result that they were not run.
            pending = session.state.conversation.pending_calls if results else {}
            yield session, tuple(pending.values())

    async def _store_results(self, results: Sequence[ClientResult], tools: Sequence[ToolSpec]) -> Session:
        """Store results in the session, after what other agents have added to its conversation; return the session."""
        session = await self.session()
        # A `ConversationStore` has no locks, so this one keeps two agents from storing results at the same time.
        keys = (f"conversation {self._conversation_id}",) if self._conversation_store is not None else ()
        async with session.runtime.calls.services.locks.held(keys, timeout_s=LOCK_TIMEOUT_S):
            stored, known = await self._load_entries(), session.state.conversation.entries
            if stored and stored[-1].id not in {entry.id for entry in known}:  # another agent has added entries
                await session.close()
                self._session = None
                self._memory = self._builder.store = MemorySessions()
                session = await self.session()  # loads them
            await store_results(session, results, tools)
            await self._save_entries()
        return session

    def new_messages(self, form: HistoryForm | None = None) -> list[dict[str, Any]]:
        """Return the newest prompt and the messages after it, to be added to a `history`.

        The default `form` is that of the agent's history, else "anthropic" (the Messages API); "openai" is Chat
        Completions. System reminders are left out.
        """
        return write_messages(self._newest_entries, form or self._messages_form)

    async def call_tool(
        self,
        name: str,
        input: dict[str, Any],
        *,
        idempotency_key: str = "",
        idempotency_ttl_s: float = KEY_TTL_S,
        timeout_s: float | None = None,
        caller_id: str = "",
    ) -> ToolFinished:
        """Call a tool without a model. A failed call raises nothing: the result has its `error`.

        Permissions apply as to a call of the model, so `approve` is called if the permission mode would ask. With an
        `idempotency_key`, a call is made only once: later calls with that key wait for its result. A failed call is
        made again only if that is safe: the tool had not begun, rejected it for now (`rate_limit`), or is read-only or
        idempotent and failed for a reason that may pass. The agent keeps the newest 1,000 keys, each for
        `idempotency_ttl_s` seconds from the start of its first call. A call that takes longer than `timeout_s` fails
        with `timeout`. `caller_id` names the caller for hooks and in the log. Raises `UsageError` for the key of a
        different call.
        """
        use = ToolUse(f"call_{secrets.token_hex(8)}", name, input)

        async def make() -> DirectCall:
            ask = self._callbacks.decide if self._callbacks else None
            return await call_directly(await self.session(), use, ask=ask, caller_id=caller_id, timeout_s=timeout_s)

        call = self._keyed.once(idempotency_key, use, make, ttl_s=idempotency_ttl_s) if idempotency_key else make()
        return (await call).finished()

    def turns(self) -> list[TurnRecord]:
        """Return a record of each turn, oldest first. A stored conversation has none before its first prompt here."""
        return turn_records(self._conversation.path)

    def run_sync(self, content: Content, *, attachments: Sequence[str | Path | Block] = ()) -> Done[Output]:
        """Do the same as `run`, for callers without an event loop.

        Nothing stays open; the next call continues the conversation. Raises `UsageError` inside an event loop.
        """
        with suppress(RuntimeError):  # there is no event loop
            asyncio.get_running_loop()
            raise UsageError("run_sync works only without an event loop. Here, await agent.run(prompt).")

        async def once() -> Done[Output]:
            try:
                return await self.run(content, attachments=attachments)
            finally:
                if self._loop is asyncio.get_running_loop():  # otherwise the session is in use in another event loop
                    await self._leave_session()

        return asyncio.run(once())

    async def close(self) -> None:
        await self._keyed.cancel()
        if self._session is not None:
            await self._session.close()
        await self._builder.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
