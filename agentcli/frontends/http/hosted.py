"""Runs one session for all clients that follow and steer it over HTTP.

A message gets a `stream_id`, which all events of its turn carry. The `StreamNote` tells the next owner of the session,
after a kill, which turn is open and which messages are queued.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from agentcli.agent import events
from agentcli.agent.commands.command import SlashCommand
from agentcli.agent.interfaces import StreamStatus
from agentcli.agent.loop import is_unanswered, partial_answer
from agentcli.agent.ops import GoOn, Pause, Prompt, RunQueued, SetModel, Steer
from agentcli.agent.result import ResultBuilder
from agentcli.background import start_in_background
from agentcli.conversation.entries import Assistant, Entry, User
from agentcli.errors import StorageError, StreamMoved, UsageError, UserError
from agentcli.frontends import json_input
from agentcli.frontends.hosts import NOT_OFFERED, OpenSession, ScreenlessHost, TypedCommand
from agentcli.frontends.http.requests import HttpError
from agentcli.frontends.http.stream import QueuedMessage, StreamWriter, hash_of
from agentcli.frontends.json_output import JsonOutput, entry_object, init_object, system_object
from agentcli.llm.messages import Block, Text, Usage
from agentcli.llm.provider import ToolSpec

log = logging.getLogger(__name__)

BATCH_S = 0.05  # events within this time are stored together
MAX_QUEUED = 50  # messages; all of them are stored again with each change of the queue
MAX_EXCERPT_CHARS = 200  # of a queued message, in the event that lists the queue
MAX_ACCEPTED = 32  # messages that are recognized if they are sent again


class HostedSession:
    """A session that this process has open. `on_given_up` is called when another program takes it over."""

    is_owner = True  # False if a terminal in this process owns the session: it runs the queue and closes the session

    def __init__(self, opened: OpenSession, writer: StreamWriter, *, on_given_up: Callable[[str], None]) -> None:
        self._opened = opened
        self._session = session = opened.session
        self.id = session.id
        self._host = ScreenlessHost(opened.opener, session, opened.commands, stays_open=False)
        self._writer = writer
        self._on_given_up = on_given_up
        self._objects: list[dict[str, Any]] = []  # to write next
        self._output = JsonOutput(session, self._objects.append, streams=True)
        self._new_status: StreamStatus | None = None  # to write next; None if it is unchanged
        self._steers: dict[str, str] = {}  # hash of a steering message -> `stream_id` of the turn that it was sent to
        self._accepting = asyncio.Lock()  # one message at a time, so that none is accepted twice
        self._command_tasks: set[asyncio.Task[None]] = set()  # running slash commands
        self._offset = 0  # added to an entry's number in the log, it gives the entry's position in the conversation
        self._follower: asyncio.Task[None] | None = None
        self._is_closing = False
        self.last_used = time.monotonic()

    @property
    def is_idle(self) -> bool:
        is_running = self._session.is_busy or self._command_tasks
        return not (is_running or self._writer.note.queue or self._session.open_questions)

    async def begin(self, *, was_running: bool) -> None:
        """Write the entries that the stream lacks. If the last owner was killed (`was_running`), continue its work."""
        session, snapshot = self._session, self._session.snapshot()
        conversation = snapshot.conversation
        self._offset = len(conversation.entries) - await session.stored()
        objects, is_turn_open = self._missing_objects(conversation.entries[self._writer.note.entries :])
        self._restore_queue()
        self._writer.change_note(model=snapshot.model, mode=snapshot.mode, entries=len(conversation.entries))
        self._follower = asyncio.create_task(self._follow(session.subscribe_batches()))
        # If no owner was killed and no turn runs, the open turn ended in a terminal, without this stream.
        self._writer.change_note(is_turn_open=is_turn_open and (was_running or session.is_busy))
        # A kill may have left calls that did not start, a prompt without a reply, or a part of an answer.
        lacks_reply = conversation.unstarted_calls or is_unanswered(conversation) or partial_answer(conversation)
        continues_turn = was_running and is_turn_open and bool(lacks_reply)
        offered = [command.name for command in self._host.commands if command.name not in NOT_OFFERED]
        for question in session.open_questions.values():  # the terminal of a shared session asked them earlier
            self._output.show(question)  # adds it to `self._objects`
        objects += [init_object(session, offered, is_resumed=continues_turn), *self._objects]
        self._objects.clear()
        await self._writer.write(objects)
        if continues_turn:
            session.submit(GoOn(if_unanswered=True))
        elif was_running:  # the process was killed after the last reply, so only the result is missing
            self._writer.change_note(is_turn_open=False)
            status: StreamStatus = "running" if conversation.queue.follow_ups else "complete"
            await self._writer.write([self._lost_result(conversation.entries)] if is_turn_open else [], status=status)
            session.submit(RunQueued())

    def _missing_objects(self, missing: Sequence[Entry]) -> tuple[list[dict[str, Any]], bool]:
        """Return the objects of entries that the stream lacks, and True if a turn is open at the log's end.

        A prompt whose hash is in the note's queue began a turn with the `stream_id` that the queue has for it. If the
        result of the previous turn was not sent before that, the objects include this result.
        """
        entries = self._session.snapshot().conversation.entries
        objects: list[dict[str, Any]] = []
        is_turn_open = self._writer.note.is_turn_open
        for position, entry in enumerate(missing, len(entries) - len(missing)):
            if (prompt := _prompt_in(entry)) is not None:
                queue, content_hash = self._writer.note.queue, hash_of(prompt.content)
                queued = next((message for message in queue if message.content_hash == content_hash), None)
                if queued or not is_turn_open:  # otherwise the prompt is a steering message of the open turn
                    if is_turn_open:
                        objects.append(self._lost_result(entries[:position]))
                    stream_id = queued.stream_id if queued else uuid.uuid4().hex
                    rest = tuple(message for message in queue if message is not queued)
                    self._writer.change_note(turn_stream_id=stream_id, queue=rest)
                    is_turn_open = True
            if value := entry_object(entry, self.id):
                objects.append(value | {"stream_id": self._writer.note.turn_stream_id} if is_turn_open else value)
        return objects, is_turn_open

    def _restore_queue(self) -> None:
        """Find the `stream_id`s of the session's queued messages in the note, so that their turns still get them."""
        note = self._writer.note
        queue: list[QueuedMessage] = []
        unmatched = list(note.queue)
        for content in self._session.snapshot().conversation.queue.follow_ups:
            # The log and the note have the same order, so of several equal messages the first is the right one.
            if noted := next((message for message in unmatched if message.content_hash == hash_of(content)), None):
                unmatched.remove(noted)
                queue.append(noted)
        # A kill may come between note and log: messages that only the note has are lost. They do not count as accepted,
        # so that clients can send them again.
        lost_ids = {message.stream_id for message in unmatched}
        accepted = tuple(id for id in note.accepted if id not in lost_ids)
        self._writer.change_note(queue=tuple(queue), accepted=accepted)

    def _lost_result(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """Return the result that a kill kept a turn from writing; its last reply is the last in `entries`."""
        reply = next((entry.body for entry in reversed(entries) if isinstance(entry.body, Assistant)), None)
        text = "".join(block.text for block in reply.content if isinstance(block, Text)) if reply else ""
        end = events.Done(text, 1, reply.usage if reply else Usage(), cost_usd=reply.cost_usd if reply else None)
        return ResultBuilder(self._session).build(end) | {"stream_id": self._writer.note.turn_stream_id}

    async def _follow(self, batches: AsyncGenerator[list[events.Event], None]) -> None:
        """Write the objects of the session's events to its stream, until another program takes the session over."""
        try:
            async for batch in batches:
                began = time.monotonic()
                for event in batch:
                    self._add_objects(event)
                objects, status = [*self._objects], self._new_status
                self._objects.clear()  # not a new list, because `JsonOutput` appends to this one
                self._new_status = None
                await self._writer.write(objects, status=status)
                self.last_used = time.monotonic()
                await asyncio.sleep(max(0.0, began + BATCH_S - self.last_used))
        except StreamMoved as moved:  # another program has taken the session over
            log.warning("%s", moved)
            self._on_given_up(self.id)
        except Exception:  # a bug: log it, and give the session up so that readers do not wait for ever
            log.exception("the stream of session %s ended", self.id)
            self._on_given_up(self.id)

    def _add_objects(self, event: events.Event) -> None:
        """Add an event's objects to those to write next, and change the stream's note and status to match."""
        first_new = len(self._objects)
        is_main = event.agent_id == "main"
        match event:
            case events.EntryStored(entry, seq) if is_main:
                if seq + self._offset <= self._writer.note.entries:
                    return  # `begin` has already written this entry
                self._writer.change_note(entries=seq + self._offset)
                if (prompt := _prompt_in(entry)) is not None:
                    self._begin_turn(prompt)
                if value := entry_object(entry, self.id):
                    self._objects.append(value)
            case events.Compaction() | events.ProviderSwitched() if is_main:
                pass  # their entries are written instead
            case events.QueueChanged(steering, follow_ups) if is_main:
                queue = {"steering": _excerpts(steering), "follow_ups": _excerpts(follow_ups)}
                self._objects.append(system_object("queue_changed", self.id, **queue))
            case events.ModeChanged(mode) if is_main:
                self._writer.change_note(mode=mode)
                self._objects.append(system_object("permission_mode", self.id, mode=mode))
            case events.TakenOver() if is_main:
                self._on_given_up(self.id)
            case _:
                self._output.show(event)
        if is_main:
            self._update_status(event)
        if self._writer.note.is_turn_open:
            for value in self._objects[first_new:]:
                value["stream_id"] = self._writer.note.turn_stream_id
        is_end = isinstance(event, events.Done | events.TurnFailed) and is_main
        # A turn with pending calls goes on when the client sends their results.
        if is_end and not self._session.snapshot().conversation.pending_calls:
            self._writer.change_note(is_turn_open=False)
            if self.is_owner and not self._is_closing:
                self._session.submit(RunQueued())  # unlike in a terminal, nobody decides about queued messages

    def _update_status(self, event: events.Event) -> None:
        """Change the status of the stream, which clients see, when a turn begins or ends."""
        match event:
            case events.TurnStarted(turn=1):  # the first request of a turn
                self._writer.change_note(model=self._session.snapshot().model)
                self._new_status = "running"
            case events.TurnFailed():
                self._new_status = "failed"
            case events.Done():
                self._new_status = "complete"
            case _:
                return
        conversation = self._session.snapshot().conversation
        queue = conversation.queue
        if queue.steering or queue.follow_ups or self._writer.note.queue or conversation.pending_calls:
            self._new_status = "running"  # queued messages or results of the client's own tools follow

    def _begin_turn(self, prompt: User) -> None:
        """Note the `stream_id` of the turn that a prompt begins, unless it is a steering message of the open turn."""
        content_hash, queue = hash_of(prompt.content), self._writer.note.queue
        steered_id = self._steers.pop(content_hash, "")
        if queue and queue[0].content_hash == content_hash:  # a queued message, whose client knows its id
            self._writer.change_note(turn_stream_id=queue[0].stream_id, queue=queue[1:])
        elif not self._writer.note.is_turn_open:
            # The turn that a steering message was sent to may have ended, but its client expects the id of that turn.
            self._writer.change_note(turn_stream_id=steered_id or uuid.uuid4().hex)
        self._writer.change_note(is_turn_open=True)

    async def accept_message(
        self, message: json_input.InputMessage, *, steers: bool, tools: Sequence[ToolSpec], stream_id: str
    ) -> str:
        """Accept and store a message, and return the `stream_id` of its turn. Raises `UserError`.

        A command runs at once. With `steers`, a prompt joins the running turn, if there is one. Otherwise the prompt
        begins a turn with the given `stream_id`, at once or when the running turn ends.
        """
        self.last_used = time.monotonic()
        async with self._accepting:
            if stream_id in self._writer.note.accepted:  # the client has sent it again
                return self._writer.note.turn_stream_id if steers else stream_id
            queue = self._session.snapshot().conversation.queue
            if len(queue.steering) + len(queue.follow_ups) >= MAX_QUEUED:
                raise HttpError(
                    429, "queue_full", f"{MAX_QUEUED} messages are already queued. Try again when some are answered."
                )
            if tools:
                self._session.offer_tools(tools)
            if (typed := self._host.command_of(message.blocks)) is not None:
                await self._note_accepted(stream_id)
                self._spawn_command(typed, stream_id, more=message.blocks[1:], has_result=True)
                return stream_id
            content = json_input.content_of(self._host, message)
            if steers and self._session.is_busy:
                turn_stream_id = self._writer.note.turn_stream_id
                self._steers[hash_of(content)] = turn_stream_id
                self._session.submit(Steer(content))
                await self._session.stored()
                await self._note_accepted(stream_id)
                return turn_stream_id
            await self._submit(Prompt(content), stream_id)
            return stream_id

    async def _note_accepted(self, stream_id: str) -> None:
        self._writer.change_note(accepted=(*self._writer.note.accepted, stream_id)[-MAX_ACCEPTED:])
        await self._writer.write_now(status=None)

    async def _submit(self, prompt: Prompt, stream_id: str) -> None:
        """Note a prompt in the stream, then store it. If a kill comes in between, the next owner drops the note."""
        before = self._writer.note
        queue = (*before.queue, QueuedMessage(stream_id, hash_of(prompt.blocks)))
        self._writer.change_note(queue=queue, accepted=(*before.accepted, stream_id)[-MAX_ACCEPTED:])
        try:
            await self._writer.write_now(status="running")
        except StorageError:
            self._writer.change_note(queue=self._writer.note.queue[:-1], accepted=before.accepted)
            raise
        self._session.submit(prompt)
        await self._session.stored()

    async def carry_out(self, request: json_input.Control) -> None:
        self.last_used = time.monotonic()
        match request:
            case json_input.CommandControl(text):
                self._spawn_command(self._host.require_command(text), uuid.uuid4().hex)
            case json_input.SteerControl(message):
                await self.accept_message(message, steers=True, tools=(), stream_id=uuid.uuid4().hex)
            case _:
                await self._writer.write_now(status=None)  # raises an error if another server has taken over
                if isinstance(request, SetModel):
                    await self._host.check_model(request.name)
                await json_input.carry_out_control(self._host, request)
                self._writer.change_note(model=self._session.snapshot().model)
                await self._writer.write([])  # stores only the note

    def _spawn_command(
        self, typed: TypedCommand, stream_id: str, *, more: Sequence[Block] = (), has_result: bool = False
    ) -> None:
        start_in_background(self._run(typed, stream_id, more, has_result=has_result), self._command_tasks)

    async def _run(self, typed: TypedCommand, stream_id: str, more: Sequence[Block], *, has_result: bool) -> None:
        """Run a command and write its output; for one that was sent as a message (`has_result`) also a result."""
        objects: list[dict[str, Any]] = []
        output = JsonOutput(self._session, objects.append, streams=True)
        started = time.monotonic()
        if isinstance(typed.command, SlashCommand) and typed.command.name in NOT_OFFERED:
            typed = TypedCommand(typed.name, UsageError(f"Instead of {typed.name}, use POST /v1/sessions."))
        ended = await self._host.run(typed, more=more)
        output.command(ended)
        if ended.prompt is None and has_result:
            output.command_result(ended, started)
        self._writer.change_note(model=self._session.snapshot().model)
        await self._writer.write([value | {"stream_id": stream_id} for value in objects])
        if ended.prompt is not None:  # the command expanded to a prompt, as a skill's does
            try:
                await self._submit(ended.prompt, stream_id)
            except UserError as error:
                log.warning("the prompt of %s was not accepted: %s", typed.name, error)

    async def close(self) -> None:
        """Interrupt the turn, write its end, and close the session; a session that we do not own continues."""
        self._is_closing = True
        if self.is_owner:
            self._session.submit(Pause())  # calls of the client's tools stay open for the next owner
            self._host.interrupt()
            await self._session.close()
        elif self._follower is not None:
            self._follower.cancel()
        if self._follower is not None:
            await asyncio.wait([self._follower])
        await self._opened.aclose()


def _prompt_in(entry: Entry) -> User | None:
    return entry.body if isinstance(entry.body, User) and not entry.body.is_reminder else None


def _excerpts(messages: Sequence[Sequence[Block]]) -> list[str]:
    """Shorten queued messages, because all of them are sent again with each change of the queue."""
    texts = ("".join(block.text for block in message if isinstance(block, Text)) for message in messages)
    return [text[:MAX_EXCERPT_CHARS] for text in texts]
