"""Coming in between: interrupts at every moment, steering, prompts that wait."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcli.agent.events import (
    Done,
    EntryStored,
    Event,
    QuestionEvent,
    Retry,
    Steered,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
)
from agentcli.agent.interfaces import NEWEST, AppendedEntries, NoHooks
from agentcli.agent.ops import Interrupt, Steer
from agentcli.conversation.entries import Assistant, Body, Entry
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm.messages import Text
from agentcli.llm.provider import Request, RetryPolicy, StreamEvent
from agentcli.llm.provider import TextDelta as Piece
from agentcli.llm.providers.scripted import ScriptedProvider
from tests.transcripts import is_valid
from tests.unit.agent.stage import LogAround, Stage, Works, answering, call, on_stage

Folder = Path
END = {"text": "The end."}


def text(said: str) -> tuple[Text, ...]:
    return (Text(said),)


@asynccontextmanager
async def begun(folder: Folder, replies: Any, event: Any, number: int = 1, **how: Any) -> AsyncIterator[Stage]:
    """A stage whose first turn has come to the event of that kind and number."""
    async with on_stage(folder, replies, **how) as stage:
        stage.say("Go")
        await stage.heard(event, number)
        yield stage


async def interrupted(stage: Stage, number: int = 1) -> Done:
    stage.submit(Interrupt())
    done = await stage.ended(number)
    assert isinstance(done, Done), done
    assert done.reason == "interrupted"
    assert stage.is_valid
    return done


class TornLog(LogAround):
    """Its commits are cancelled, as all tasks are when a program leaves its event loop."""

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> AppendedEntries:
        appended = self.log.append(*bodies, parent_id=parent_id)
        torn = asyncio.get_running_loop().create_future()
        torn.cancel()
        return AppendedEntries(appended.entries, torn)


async def goes_on(stage: Stage) -> None:
    """The next prompt is answered, and what is sent with it is valid."""
    done = await stage.ask("Go on")
    assert isinstance(done, Done), done
    assert done.reason == "end_turn"
    assert is_valid(stage.provider.requests[-1].messages)


# Interrupts.


class Halting(ScriptedProvider):
    """A script whose first reply says nothing more after its second piece of text."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        pieces = 0
        async for event in super().stream(request):
            yield event
            pieces += isinstance(event, Piece)
            if len(self.requests) == 1 and pieces == 2:
                await asyncio.Event().wait()


async def test_an_interrupt_in_the_text_keeps_what_was_reported(tmp_path: Folder) -> None:
    halting = Halting([{"text": "One two three four", "chunk": 4}, END])
    async with on_stage(tmp_path, provider=halting) as stage:
        stage.say("Count")
        await stage.heard(TextDelta, 2)
        done = await interrupted(stage)
        assert done.text == "One two"
        (partial,) = [entry.body for entry in stage.entries if isinstance(entry.body, Assistant)]
        assert partial.stop_reason == "interrupted"
        assert partial.content == (Text("One two "),)
        await goes_on(stage)


@pytest.mark.parametrize(
    ("reply", "event"),
    [
        ({"thinking": "a long thought", "chunk": 2, "delay_ms": 15}, ThinkingDelta),
        ({"text": "late", "delay_ms": 60_000}, EntryStored),
        ({"text": "late", "delay_ms": 60_000}, None),  # before it began
        ({"error": {"kind": "overloaded"}}, Retry),
    ],
)
async def test_an_interrupt_before_the_first_word_keeps_nothing(tmp_path: Folder, reply: Any, event: Any) -> None:
    policy = RetryPolicy(max_retries=3, initial_delay=60)
    async with on_stage(tmp_path, [reply, END], retry=policy) as stage:
        started = time.monotonic()
        stage.say("Go")
        if event is not None:
            await stage.heard(event)
        assert (await interrupted(stage)).text == ""
        assert stage.said() == []
        assert time.monotonic() - started < 30  # of the 60 s that it waits
        await goes_on(stage)


async def test_interrupting_again_and_again_ends_the_turn_once(tmp_path: Folder) -> None:
    async with begun(tmp_path, [{"tool_calls": [call("bash", command="sleep 30", id="c")]}, END], ToolStarted) as stage:
        for _ in range(5):
            stage.submit(Interrupt())
            await asyncio.sleep(0)
        done = await stage.ended()
        assert done.reason == "interrupted"
        await asyncio.sleep(0.02)
        assert len(stage.ends) == 1
        assert stage.is_valid
        await goes_on(stage)


async def test_a_running_call_is_ended_and_says_that_it_may_have_had_effects(tmp_path: Folder) -> None:
    works = Works()
    async with on_stage(
        tmp_path, [{"tool_calls": [call("slow", "a", id="c")]}, END], tools=[works.tool("slow", held=True)]
    ) as stage:
        stage.say("Go")
        await works.begun.wait()
        await interrupted(stage)
        assert works.running == 0
        result = stage.results["c"]
        assert result.is_error
        assert result.content == "half\n[interrupted by the user; it may have partially run]"
        assert [event.id for event in stage.of(ToolFinished)] == ["c"]
        await goes_on(stage)


async def test_a_running_command_leaves_no_process_behind(tmp_path: Folder) -> None:
    command = "echo $$ > pid; exec sleep 30"
    replies = [{"tool_calls": [call("bash", command=command, id="c")]}, END]
    async with on_stage(tmp_path, replies, mode="bypassPermissions") as stage:
        stage.say("Go")
        pid = stage.workspace / "pid"
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.005)
        await interrupted(stage)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


async def test_of_several_calls_the_done_keep_their_results_and_the_others_say_what_became_of_them(
    tmp_path: Folder,
) -> None:
    works = Works()
    tools = [works.tool("quick"), works.tool("slow", held=True), works.tool("change", "edit")]
    calls = [call("quick", "a", id="a"), call("slow", "b", id="b"), call("change", "c", id="c")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=tools, mode="acceptEdits") as stage:
        stage.say("Go")
        await stage.heard(ToolFinished)
        await interrupted(stage)
        assert stage.results["a"].content == "did a"
        assert "may have partially run" in str(stage.results["b"].content)
        assert stage.results["c"].content == "Not run: the user interrupted this turn."
        assert works.order[-1] != "+c"
        await goes_on(stage)


@pytest.mark.parametrize("op", [Interrupt(), Steer((Text("Never mind"),))])
async def test_calls_that_wait_for_a_place_are_not_run(tmp_path: Folder, op: Any) -> None:
    works = Works()
    replies, tools = (
        [{"tool_calls": [call("slow", name, id=name) for name in "abcd"]}, END],
        [works.tool("slow", held=True)],
    )
    async with begun(tmp_path, replies, ToolStarted, 2, tools=tools, max_parallel=2) as stage:
        stage.submit(op)
        if isinstance(op, Steer):
            works.gate.set()
        await stage.ended()
        assert works.order[:2] == ["+a", "+b"]
        assert [str(stage.results[id].content).startswith("Not run") for id in "abcd"] == [False, False, True, True]
    assert [skipped.id for event in stage.of(Steered) for skipped in event.skipped] == (
        ["c", "d"] if isinstance(op, Steer) else []
    )


async def test_an_open_question_is_closed_by_an_interrupt_and_the_call_was_not_run(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("bash", command="touch made", id="c")]}, END]
    async with begun(tmp_path, replies, QuestionEvent, can_ask=True) as stage:
        await interrupted(stage)
        assert stage.results["c"].is_error
        assert stage.results["c"].content == "Not run: the user interrupted this turn."
        assert not (stage.workspace / "made").exists()
        await goes_on(stage)


class InBetween(NoHooks):
    """Stands between a reply and its calls until it is interrupted."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def on_turn_end(self, *about: Any) -> bool:
        if not self.reached.is_set():
            self.reached.set()
            await asyncio.sleep(30)
        return True


async def test_an_interrupt_between_a_reply_and_its_calls_answers_them(tmp_path: Folder) -> None:
    hooks = InBetween()
    replies = [{"text": "Now.", "tool_calls": [call("bash", command="touch made", id="c")]}, END]
    async with on_stage(tmp_path, replies, hooks=hooks, mode="bypassPermissions") as stage:
        stage.say("Go")
        await hooks.reached.wait()
        done = await interrupted(stage)
        assert done.text == "Now."
        assert stage.results["c"].content == "Not run: the user interrupted this turn."
        await goes_on(stage)


@pytest.mark.full
@pytest.mark.slow
async def test_an_interrupt_at_any_event_leaves_a_conversation_that_can_continue(tmp_path: Folder) -> None:
    """At each event of a turn in turn: the session hears the interrupt before it does anything else."""
    replies = [
        {
            "thinking": "Hm.",
            "text": "Looking.",
            "chunk": 3,
            "tool_calls": [call("think", thought="a"), call("slow", "b")],
        },
        {"text": "Now this.", "tool_calls": [call("bash", command="echo x"), call("bash", command="touch y")]},
        END,
        END,
        END,
    ]
    moments, reached_end = 0, False
    while not reached_end:
        works = Works()
        folder = tmp_path / str(moments)
        folder.mkdir()
        async with on_stage(folder, replies, tools=[works.tool("slow")], can_ask=True) as stage:
            answering(stage, allowed=True)
            stage.say("Go")
            await stage.heard(object, moments + 1)
            stage.submit(Interrupt())
            end = await stage.ended()
            reached_end = end.reason == "end_turn"
            assert stage.is_valid, stage.messages
            await goes_on(stage)
        moments += 1
    assert moments > 20


async def test_an_interrupt_without_a_turn_does_nothing(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END]) as stage:
        stage.submit(Interrupt())
        await goes_on(stage)
        stage.submit(Interrupt())
        await asyncio.sleep(0)
        assert len(stage.ends) == 1


async def test_an_interrupt_while_a_failure_is_reported_still_ends_the_turn(tmp_path: Folder) -> None:
    class Slow(NoHooks):
        async def on_error(self, text: str, is_retryable: bool) -> None:
            reached.set()
            await asyncio.sleep(30)

    reached = asyncio.Event()
    async with on_stage(tmp_path, [{"error": {"kind": "bad_request"}}, END], hooks=Slow()) as stage:
        stage.say("Go")
        await reached.wait()
        await interrupted(stage)


async def test_closing_ends_the_turn_and_answers_its_calls(tmp_path: Folder) -> None:
    works = Works()
    async with on_stage(
        tmp_path, [{"tool_calls": [call("slow", "a", id="c")]}], tools=[works.tool("slow", held=True)]
    ) as stage:
        stage.say("Go")
        stage.say("And then")
        await works.begun.wait()
        await stage.session.close()
        assert stage.is_valid
        assert "c" in stage.results
        assert not stage.session.is_busy
        assert len(stage.provider.requests) == 1


# Steering.


async def test_steering_skips_the_calls_that_have_not_begun_and_says_so(tmp_path: Folder) -> None:
    works = Works()
    tools = [works.tool("slow", "edit", held=True)]
    calls = [call("slow", name, id=name) for name in "abc"]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=tools, mode="acceptEdits") as stage:
        stage.say("Go")
        await works.begun.wait()
        stage.submit(Steer(text("Stop, look at d instead")))
        works.gate.set()
        done = await stage.ended()
    assert done.reason == "end_turn"
    assert works.order == ["+a", "-a"]
    (steered,) = stage.of(Steered)
    assert [skipped.id for skipped in steered.skipped] == ["b", "c"]
    assert stage.results["b"].content == "Not run: the user sent a new message."
    last = stage.provider.requests[1].messages[-1]
    assert [block.tool_use_id for block in last.content[:3]] == ["a", "b", "c"]  # type: ignore[union-attr]
    assert last.content[3] == Text("Stop, look at d instead")


async def test_steering_reaches_the_model_after_an_answer_that_was_on_its_way(tmp_path: Folder) -> None:
    async with begun(
        tmp_path, [{"text": "First answer.", "chunk": 4, "delay_ms": 5}, {"text": "Second."}], TextDelta
    ) as stage:
        stage.submit(Steer(text("Also this")))
        await stage.ended()
        assert len(stage.ends) == 1
    roles = [message.role for message in stage.provider.requests[1].messages]
    assert roles == ["user", "assistant", "user"]
    assert stage.of(Steered) == []
    assert stage.prompts() == ["Go", "Also this"]


async def test_steering_without_a_turn_is_a_prompt_and_its_answer_can_be_waited_for(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END, END]) as stage:
        stage.submit(Steer(text("Go")))
        for done in (await stage.ended(), await stage.session.answer(text("Again"))):
            assert done.text == "The end."


# Prompts that wait.


async def test_a_second_prompt_waits_for_the_end_of_the_turn(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="a")]}, {"text": "One."}, {"text": "Two."}]
    async with on_stage(tmp_path, replies) as stage:
        stage.say("first")
        stage.say("second")
        last = await stage.ended(2)
    assert isinstance(last, Done)
    assert [end.text for end in stage.ends if isinstance(end, Done)] == ["One.", "Two."]
    assert stage.prompts() == ["first", "second"]
    assert len(stage.provider.requests) == 3
    assert stage.count(TurnEnded) == 3


# Several hands.


async def test_operations_may_come_from_any_thread(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "late", "delay_ms": 10_000}, END]) as stage:
        threading.Timer(0.02, stage.say, ["Go"]).start()  # and nothing else wakes the loop
        await stage.heard(EntryStored)
        threading.Timer(0.02, stage.submit, [Interrupt()]).start()
        done = await stage.ended()
        assert done.reason == "interrupted"
        await goes_on(stage)


@pytest.mark.slow
async def test_a_hundred_prompts_from_several_threads_are_all_answered(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": f"{n}"} for n in range(100)]) as stage:

        def say_some(which: int) -> None:
            for number in range(25):
                stage.say(f"{which}-{number}")

        await asyncio.gather(*(asyncio.to_thread(say_some, which) for which in range(4)))
        await stage.ended(100)
    for which in range(4):
        mine = [prompt for prompt in stage.prompts() if prompt.startswith(f"{which}-")]
        assert mine == [f"{which}-{number}" for number in range(25)]


@pytest.mark.parametrize("words", [400, 1])
async def test_a_slow_subscriber_slows_nothing_and_misses_nothing_but_seams(tmp_path: Folder, words: int) -> None:
    long = "word " * words
    first = {"thinking": "Hm.", "text": long, "chunk": 5, "tool_calls": [call("think", thought="a")]}
    async with on_stage(tmp_path, [first, {"text": long, "chunk": 5}]) as stage:
        slow = stage.session.subscribe()
        await stage.ask("Go")  # nobody has read `slow` meanwhile
        behind: list[Event] = []
        async for event in slow:
            behind.append(event)
            if isinstance(event, Done):
                break
        await slow.aclose()
    seams = ThinkingDelta | TextDelta
    assert [event.text for event in behind if isinstance(event, seams)] == ["Hm.", long, long]
    assert [e for e in behind if not isinstance(e, seams)] == [e for e in stage.events if not isinstance(e, seams)]


async def test_a_subscriber_that_left_is_forgotten(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END, END]) as stage:
        leaving = stage.session.subscribe()
        await stage.ask("Go")
        await anext(leaving)
        await leaving.aclose()
        await stage.ask("Again")
        assert len(stage.session._subscribers._queues) == 1


async def test_a_session_is_rebuilt_from_its_log(tmp_path: Folder) -> None:
    reply = {"text": "One.", "usage": {"input_tokens": 7}, "tool_calls": [call("think", thought="a", id="t")]}
    async with on_stage(tmp_path, [reply, {"text": "Two."}]) as stage:
        await stage.ask("first")
        kept: list[Entry] = stage.entries
    async with on_stage(tmp_path, [{"text": "Three."}], entries=kept) as stage:
        assert stage.session.state.model.last_used == "scripted/script"
        assert stage.session.state.meter.total.usage.input_tokens >= 7
        await stage.ask("second")
    assert [message.role for message in stage.provider.requests[0].messages] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip


async def test_a_call_that_a_crash_left_open_is_answered_as_unknown_before_the_next_request(tmp_path: Folder) -> None:
    works = Works()
    replies = [{"tool_calls": [call("slow", "a", id="c")]}]
    async with on_stage(tmp_path, replies, tools=[works.tool("slow", held=True)]) as stage:
        stage.say("Go")
        await works.begun.wait()
        crashed = list(stage.entries)
    async with on_stage(tmp_path, [END], entries=crashed, tools=[works.tool("slow")]) as stage:
        await stage.ask("Again")
        assert "may have partially run" in str(stage.results["c"].content)
        assert works.order == ["+a"]  # never run again by itself
        assert stage.is_valid


async def test_commits_that_were_cancelled_are_not_waited_for(tmp_path: Folder) -> None:
    log = TornLog(await MemorySessions().create(cwd=tmp_path))
    async with asyncio.timeout(10), on_stage(tmp_path, [{"text": "Hi."}], log=log) as stage:
        stage.say("Hello")
        await stage.ended(1)
