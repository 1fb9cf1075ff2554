"""Messages that wait: in sight, taken back, started, and never lost nor doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentcli.agent.events import Done, EntryStored, QueueChanged, Steered, TextDelta, TurnEnded, TurnFailed
from agentcli.agent.interfaces import NEWEST, AppendedEntries, StoredEntries
from agentcli.agent.ops import Interrupt, Prompt, RunQueued, Steer, TakeBack
from agentcli.agent.runtime import TurnLimits
from agentcli.conversation.entries import Body, Entry, Queued, User
from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions
from agentcli.llm.messages import Base64Source, Image, Text
from agentcli.llm.models import ModelInfo
from agentcli.llm.providers.scripted import ScriptedProvider
from tests.unit.agent.stage import LogAround, Stage, call, on_stage, text_of

Folder = Path
LATE = {"text": "late", "delay_ms": 10_000}
END = {"text": "The end."}


def text(said: str) -> tuple[Text, ...]:
    return (Text(said),)


def queue(stage: Stage) -> tuple[list[str], list[str]]:
    """The newest `QueueChanged`, as texts."""
    last = stage.of(QueueChanged)[-1]
    return [text_of(m) for m in last.steering], [text_of(m) for m in last.follow_ups]


async def test_every_change_of_the_queue_is_reported(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "One.", "delay_ms": 20}, {"text": "Two."}]) as stage:
        stage.say("first")
        stage.say("second")
        stage.say("third")
        await stage.heard(QueueChanged, 2)
        assert queue(stage) == ([], ["second", "third"])
        stage.submit(Steer(text("psst")))
        await stage.heard(QueueChanged, 3)
        assert queue(stage) == (["psst"], ["second", "third"])
        stage.submit(TakeBack())
        await stage.heard(QueueChanged, 4)
        assert queue(stage) == (["psst"], ["second"])
        stage.submit(TakeBack())
        stage.submit(TakeBack())
        await stage.heard(QueueChanged, 6)
        assert queue(stage) == ([], [])
        stage.submit(TakeBack())
        await stage.ended()
    assert stage.count(QueueChanged) == 6
    assert stage.prompts() == ["first"]


async def test_a_message_leaves_the_queue_in_the_very_transaction_it_is_reported_in(tmp_path: Folder) -> None:
    store = SqliteSessions(tmp_path / "sessions.db")
    log = await store.create(cwd=tmp_path)
    async with on_stage(tmp_path, [{"text": "One.", "chunk": 1, "delay_ms": 2}, {"text": "A."}, END], log=log) as stage:
        stage.say("first")
        stage.say("second")
        await stage.heard(TextDelta)
        stage.submit(Steer(text("psst")))
        await stage.ended(2)
        stored = stage.entries
    for said, left in (("psst", ["second"]), ("second", [])):
        at = next(n for n, e in enumerate(stored) if isinstance(e.body, User) and e.body.text == said)
        event = stored[at + 1].body
        assert isinstance(event, Queued)
        assert [text_of(message) for message in event.steering + event.follow_ups] == left
    _, again = await store.open(log.session_id)
    assert again == stored
    await store.close()


async def test_whatever_the_log_holds_when_it_breaks_off_no_message_is_lost_or_doubled(tmp_path: Folder) -> None:
    """The log cut off after each transaction, which is where a crash can cut it."""
    steps: list[list[Entry]] = []
    async with on_stage(tmp_path, [{"text": "One.", "delay_ms": 20}, END, END, END]) as stage:
        kept = stage.session.runtime.log.append

        def append(*bodies: object, **how: object) -> object:
            appended = kept(*bodies, **how)  # type: ignore[arg-type]
            steps.append([*(steps[-1] if steps else []), *appended.entries])
            return appended

        stage.session.runtime.log.append = append  # type: ignore[method-assign, assignment]
        stage.say("first")
        await stage.heard(EntryStored)
        stage.submit(Steer(text("psst")))
        stage.say("second")
        stage.say("third")
        await stage.ended(3)
    waiting: set[str] = set()
    for log in steps:
        async with on_stage(tmp_path, entries=log) as stage:
            waits = [text_of(message) for message in stage.session.state.conversation.queue.follow_ups]
            said = stage.prompts()
        assert len({*waits, *said}) == len(waits) + len(said)
        waiting |= {*waits, *said}
        assert waiting == {*waits, *said}
    assert waiting == {"first", "psst", "second", "third"}


async def test_closing_keeps_what_waits_and_a_resumed_session_runs_it_when_asked(tmp_path: Folder) -> None:
    picture = Image(Base64Source("image/png", "AAAA"))
    async with on_stage(tmp_path, [LATE]) as stage:
        stage.say("first")
        await stage.heard(EntryStored)
        stage.submit(Prompt((Text("look"), picture)))
        stage.submit(Steer(text("psst")))
        await stage.session.close()
        stored = list(stage.entries)
        assert len(stage.provider.requests) == 1
    async with on_stage(tmp_path, [{"text": "One."}, {"text": "Two."}], entries=stored) as stage:
        assert list(stage.session.state.conversation.queue.follow_ups) == [text("psst"), (Text("look"), picture)]
        assert not stage.session.state.conversation.queue.steering
        await asyncio.sleep(0.02)
        assert not stage.provider.requests
        stage.submit(RunQueued())
        await stage.ended(2)
        assert stage.prompts() == ["first", "psst", "look"]
        assert picture in stage.provider.requests[-1].messages[-1].content
        stage.submit(RunQueued())
        await asyncio.sleep(0.02)
        assert len(stage.ends) == 2


async def test_follow_ups_stay_after_an_interrupt_until_they_are_run(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [LATE, {"text": "Two."}, {"text": "Three."}]) as stage:
        stage.say("first")
        stage.say("second")
        stage.say("third")
        await stage.heard(EntryStored, 3)
        stage.submit(Interrupt())
        await stage.ended()
        await asyncio.sleep(0.02)
        assert not stage.session.is_busy
        assert queue(stage) == ([], ["second", "third"])
        stage.submit(RunQueued())
        stage.submit(RunQueued())
        await stage.ended(3)
    assert [end.text for end in stage.ends if isinstance(end, Done)] == ["", "Two.", "Three."]
    assert stage.session.turns_begun == 3


async def test_follow_ups_left_by_an_interrupt_run_after_the_next_prompt(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [LATE, END, END]) as stage:
        stage.say("first")
        stage.say("second")
        await stage.heard(EntryStored, 2)
        stage.submit(Interrupt())
        await stage.ended()
        stage.say("sooner")
        await stage.ended(3)
    assert stage.prompts() == ["first", "sooner", "second"]


async def test_steering_that_an_interrupt_overtook_reaches_the_model_at_once(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [LATE, {"tool_calls": [call("think", thought="a", id="t")]}, END, END]) as stage:
        stage.say("first")
        stage.say("waits")
        await stage.heard(EntryStored, 2)
        stage.submit(Steer(text("Wait")))
        stage.submit(Steer(text("and look")))
        stage.submit(Interrupt())
        await stage.ended(3)
        assert stage.of(Steered) == []
        assert not stage.results["t"].is_error
    assert stage.prompts() == ["first", "Wait", "and look", "waits"]
    assert [end.reason for end in stage.ends if isinstance(end, Done)] == ["interrupted", "end_turn", "end_turn"]


class SlowLog(LogAround):
    """Takes a moment to store."""

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> AppendedEntries:
        appended = self.log.append(*bodies, parent_id=parent_id)

        async def committed() -> StoredEntries:
            await asyncio.sleep(0.02)
            return await appended.committed

        return AppendedEntries(appended.entries, asyncio.ensure_future(committed()))


async def test_steering_that_came_as_the_turn_ended_has_a_turn_of_its_own(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="a")]}, {"text": "Yes."}]
    log = SlowLog(await MemorySessions().create(cwd=tmp_path))
    async with on_stage(tmp_path, replies, log=log, limits=TurnLimits(max_turns=1)) as stage:
        stage.say("first")
        await stage.heard(TurnEnded)  # from here on the turn only waits for its results to be stored
        stage.submit(Steer(text("One more")))
        await stage.ended(2)
    assert stage.prompts() == ["first", "One more"]
    assert [end.reason for end in stage.ends if isinstance(end, Done)] == ["max_turns", "end_turn"]


async def test_queued_messages_survive_a_failure_and_run_when_asked_for(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"error": {"kind": "bad_request"}}, {"text": "Two."}]) as stage:
        stage.say("first")
        stage.say("second")
        await stage.ended()
        assert len(stage.session.state.conversation.queue.follow_ups) == 1
        stage.submit(RunQueued())
        await stage.ended(2)
    assert [type(end) for end in stage.ends] == [TurnFailed, Done]


async def test_a_second_interrupt_ends_the_turn_that_followed_the_first(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [LATE, LATE, END]) as stage:
        stage.say("first")
        await stage.heard(EntryStored)
        stage.submit(Steer(text("Wait")))
        stage.submit(Interrupt())
        await stage.ended()
        stage.submit(Interrupt())
        await stage.ended(2)
        assert not stage.session.is_busy
        assert stage.is_valid


async def test_a_model_for_one_prompt_answers_that_prompt_only(tmp_path: Folder) -> None:
    other = ScriptedProvider([{"text": "I am other."}], info=ModelInfo("other", "scripted"))
    async with on_stage(tmp_path, [END], others={"scripted/other": other}) as stage:
        stage.submit(Prompt(text("Who?"), "scripted/other"))
        first = await stage.ended()
        assert stage.session.state.model.name == "scripted/script"
        second = await stage.ask("And now?")
    assert (first.text, second.text) == ("I am other.", "The end.")


async def test_any_message_that_waits_can_be_withdrawn(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [LATE, END]) as stage:
        stage.say("go")
        await stage.heard(EntryStored)
        stage.submit(Steer(text("now")))
        for said in ("one", "two", "three"):
            stage.say(said)
        stage.submit(TakeBack(2))
        stage.submit(TakeBack(0))
        stage.submit(TakeBack(7))
        await stage.heard(QueueChanged, 6)
        assert [block.text for (block,) in stage.session.state.conversation.queue.follow_ups] == ["one", "three"]
        assert not stage.session.state.conversation.queue.steering
        stage.submit(Interrupt())
        await stage.ended()
