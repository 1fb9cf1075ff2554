"""A prompt and its rounds: what the model is asked, what comes of its reply, and how a turn ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcli.agent.accounting import Account, Budgets
from agentcli.agent.events import (
    Done,
    EntryStored,
    Event,
    Notice,
    ProviderSwitched,
    Retry,
    TextDelta,
    ThinkingDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    UsageReported,
)
from agentcli.agent.interfaces import NoHooks
from agentcli.agent.ops import GoOn, RunQueued, SetMode, SetModel
from agentcli.agent.runtime import TurnLimits
from agentcli.agent.steps.messages import MAX_CONTINUATIONS
from agentcli.conversation import entries as logged
from agentcli.conversation.entries import Assistant, CallsStarted, Entry, Result, User
from agentcli.errors import UserError
from agentcli.llm.errors import ConnectionFailed
from agentcli.llm.messages import Message, Text, ToolResult, Usage
from agentcli.llm.models import ModelInfo, Prices
from agentcli.llm.provider import Done as ReplyDone
from agentcli.llm.provider import Request, RetryPolicy, StreamEvent
from agentcli.llm.providers.anthropic import AnthropicProvider
from agentcli.llm.providers.scripted import ScriptedProvider
from tests.conformance.replies import Call, Said, anthropic_reply
from tests.conformance.servers import anthropic_server
from tests.transcripts import is_valid
from tests.unit.agent.stage import Works, call, failing_tool, on_stage

Folder = Path


class Changed(ScriptedProvider):
    """A script whose last events are changed on their way: for what a script cannot say."""

    def __init__(self, replies: list[dict[str, Any]], change: Callable[[int, ReplyDone], ReplyDone]) -> None:
        super().__init__(replies)
        self._change = change

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        async for event in super().stream(request):
            yield self._change(len(self.requests), event) if isinstance(event, ReplyDone) else event


def notes_in(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, Text))


async def test_an_answer_is_streamed_stored_and_reported(tmp_path: Folder) -> None:
    reply = {"thinking": "Let me see.", "text": "All is well.", "chunk": 4}
    async with on_stage(tmp_path, [{**reply, "usage": {"input_tokens": 10, "output_tokens": 4}}]) as stage:
        done = await stage.ask("How is it?")
    assert done == Done("All is well.", 1, Usage(10, 4), "end_turn", 0.0)
    assert "".join(event.text for event in stage.of(TextDelta)) == "All is well."
    assert "".join(event.text for event in stage.of(ThinkingDelta)) == "Let me see."
    assert [event.entry.body for event in stage.of(EntryStored)] == [entry.body for entry in stage.entries]
    assert [event.seq for event in stage.of(EntryStored)] == [1, 2]
    assert stage.of(TurnStarted) == [TurnStarted(1)]
    assert stage.of(TurnEnded) == [TurnEnded(1, "end_turn", "script", "scripted")]
    assert stage.of(UsageReported) == [UsageReported(Usage(10, 4), 0.0, 0.0, "script", "scripted")]
    assert isinstance(stage.events[-1], Done)


async def test_ends_are_stored_before_they_are_reported(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="Hm.")]}, {"text": "Done."}]
    async with on_stage(tmp_path, replies) as stage:
        await stage.ask("Think")
    kinds = [type(event) for event in stage.events]
    first_end = kinds.index(TurnEnded)
    stored = [event.entry.body for event in stage.events[:first_end] if isinstance(event, EntryStored)]
    assert [type(body) for body in stored] == [User, Assistant, CallsStarted]
    before_done = [event.entry for event in stage.events[:-1] if isinstance(event, EntryStored)]
    assert before_done == stage.entries


async def test_a_tool_result_goes_back_to_the_model(tmp_path: Folder) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("blue\n")
    replies = [{"tool_calls": [call("file_read", path="notes.txt")]}, {"text": "It says {{last_result}}"}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("What do my notes say?")
    assert (done.text, done.turns) == ("It says 1\tblue", 2)
    sent = stage.provider.requests[1].messages
    assert [message.role for message in sent] == ["user", "assistant", "user"]
    assert sent[2].content == (ToolResult("call_1_1", "1\tblue"),)


async def test_the_start_of_a_call_is_stored_together_with_the_reply_that_asks_for_it(tmp_path: Folder) -> None:
    works = Works()
    async with on_stage(
        tmp_path, [{"tool_calls": [call("slow", "a", id="c1")]}], tools=[works.tool("slow", held=True)]
    ) as stage:
        stage.say("Go")
        await works.begun.wait()
        stored = [event.entry.body for event in stage.of(EntryStored)]
        assert stored[-1] == CallsStarted(("c1",))


async def test_the_text_before_calls_is_not_the_answer(tmp_path: Folder) -> None:
    replies = [{"text": "Let me look.", "tool_calls": [call("think", thought="Hm.")]}, {"text": "Found it."}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Look")
    assert done.text == "Found it."


# The prompt prefix.


@pytest.mark.slow
async def test_every_request_begins_with_the_bytes_of_the_one_before(tmp_path: Folder) -> None:
    rounds = 30
    replies = [Said(f"Round {n}.", calls=(Call(f"c{n}", "think", {"thought": f"{n}"}),)) for n in range(rounds)]
    script = [*map(anthropic_reply, replies), anthropic_reply("The end."), anthropic_reply("More.")]
    info = ModelInfo("claude-sonnet-5-5", "anthropic", window=1_000_000, max_output=8_000)
    with anthropic_server(script) as server:
        provider = AnthropicProvider(info, base_url=server.url, api_key="key")
        others = {"scripted/script": provider}
        async with on_stage(tmp_path, others=others, limits=TurnLimits(max_turns=rounds + 1)) as stage:
            done = await stage.ask("Go")
            stage.submit(SetMode("plan"))
            await stage.ask("And now?")
            await provider.aclose()
        assert done.text == "The end."
        bodies = [without_breakpoints(request.json) for request in server.requests]
    assert len(bodies) == rounds + 2
    for before, after in pairwise(bodies):
        assert after["system"] == before["system"]
        assert after["tools"] == before["tools"]
        assert encoded(after["messages"]).startswith(encoded(before["messages"]).removesuffix(b"]"))
    assert "Plan mode is on" in str(bodies[-1]["messages"][-1])


def without_breakpoints(value: Any) -> Any:
    """A request without its cache marks, which move on and are no part of the prompt."""
    if isinstance(value, dict):
        return {key: without_breakpoints(item) for key, item in value.items() if key != "cache_control"}
    return [without_breakpoints(item) for item in value] if isinstance(value, list) else value


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


async def test_each_request_says_how_many_messages_the_one_before_held(tmp_path: Folder) -> None:
    replies = [*[{"tool_calls": [call("think", thought=str(n))]} for n in range(3)], {"text": "Done."}]
    async with on_stage(tmp_path, replies) as stage:
        await stage.ask("Go")
    assert [request.earlier_messages for request in stage.provider.requests] == [0, 1, 3, 5]
    assert [len(request.messages) for request in stage.provider.requests] == [1, 3, 5, 7]


async def test_plan_mode_is_reported_by_a_note_and_the_system_text_stays(tmp_path: Folder) -> None:
    replies = [{"text": "a"}, {"tool_calls": [call("bash", command="touch x")]}, {"text": "b"}, {"text": "c"}]
    async with on_stage(tmp_path, replies) as stage:
        await stage.ask("one")
        stage.submit(SetMode("plan"))
        await stage.ask("two")
        stage.submit(SetMode("default"))
        await stage.ask("three")
    assert len({request.system for request in stage.provider.requests}) == 1
    first, second, _, fourth = (request.messages[-1] for request in stage.provider.requests)
    assert "Plan mode" not in notes_in(first)
    assert "Plan mode is on" in notes_in(second)
    assert "Plan mode is off" in notes_in(fourth)
    assert "plan mode is read-only" in str(stage.results["call_2_1"].content)
    assert not (stage.workspace / "x").exists()


async def test_setting_the_mode_that_is_on_already_tells_nothing(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "a"}]) as stage:
        stage.submit(SetMode("default"))
        await stage.ask("one")
    assert stage.reminders() == []


# How a reply that is no answer yet goes on.


async def test_a_reply_cut_by_its_limit_continues_where_it_stopped(tmp_path: Folder) -> None:
    replies = [{"text": "One two ", "stop_reason": "max_tokens"}, {"text": "three."}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Count")
    assert (done.text, done.reason) == ("One two three.", "end_turn")
    assert "Continue exactly where it stopped" in notes_in(stage.provider.requests[1].messages[-1])


async def test_a_reply_that_is_cut_forever_ends_after_a_few_dry_runs_and_says_so(tmp_path: Folder) -> None:
    replies = [{"text": f"part {n} ", "stop_reason": "max_tokens"} for n in range(MAX_CONTINUATIONS + 2)]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Count")
    assert done.reason == "max_tokens"
    assert len(stage.provider.requests) == MAX_CONTINUATIONS + 1


async def test_a_call_that_was_cut_is_asked_for_again_with_more_room(tmp_path: Folder) -> None:
    def lose(number: int, done: ReplyDone) -> ReplyDone:
        return msgspec.structs.replace(done, lost_tool_call=number == 1)

    replies = [{"text": "Writing.", "stop_reason": "max_tokens"}, {"text": "Written."}]
    limits = TurnLimits(max_tokens=1_000)
    async with on_stage(tmp_path, provider=Changed(replies, lose), limits=limits) as stage:
        await stage.ask("Write")
    first, second = stage.provider.requests
    assert "cut off inside a tool call, so the call did not run" in notes_in(second.messages[-1])
    assert (first.max_tokens, second.max_tokens) == (1_000, 2_000)


async def test_a_reply_is_never_asked_to_be_longer_than_the_model_can(tmp_path: Folder) -> None:
    async with on_stage(
        tmp_path,
        [{"text": "x"}],
        info=ModelInfo("script", "scripted", max_output=500),
        limits=TurnLimits(max_tokens=9_000),
    ) as stage:
        await stage.ask("Write")
    assert stage.provider.requests[0].max_tokens == 500


async def test_a_paused_reply_is_sent_back_as_it_is(tmp_path: Folder) -> None:
    replies = [{"text": "Searching ", "stop_reason": "pause_turn"}, {"text": "found."}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Search")
    assert done.text == "Searching found."
    assert stage.provider.requests[1].messages[-1] == Message("assistant", (Text("Searching "),))
    assert stage.reminders() == []


async def test_a_model_that_pauses_forever_is_stopped_by_the_limit_of_rounds(tmp_path: Folder) -> None:
    replies = [{"text": f"{n}", "stop_reason": "pause_turn"} for n in range(9)]
    async with on_stage(tmp_path, replies, limits=TurnLimits(max_turns=4)) as stage:
        done = await stage.ask("Search")
    assert (done.reason, done.turns, done.text) == ("max_turns", 4, "0123")


async def test_silence_after_results_is_asked_once_to_answer(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="Hm.")]}, {"text": ""}, {"text": "Here it is."}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Go")
    assert (done.text, done.turns) == ("Here it is.", 3)
    assert len(stage.reminders()) == 1
    assert all(is_valid(request.messages) for request in stage.provider.requests)


async def test_silence_that_continues_ends_the_turn(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="Hm.")]}, {"text": ""}, {"text": " "}, {"text": "late"}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Go")
    assert ("an empty answer" in done.error, done.turns) == (True, 3)


async def test_reasoning_that_takes_the_whole_reply_is_not_an_answer(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"thinking": "Hm", "stop_reason": "max_tokens"}] * 4) as stage:
        failed = await stage.ask("Go")
    assert "tokens.max_output" in failed.error


async def test_a_refusal_takes_the_prompt_back_and_the_conversation_continues(tmp_path: Folder) -> None:
    def explain(number: int, done: ReplyDone) -> ReplyDone:
        return msgspec.structs.replace(done, note="cyber") if number == 2 else done

    replies = [{"text": "Hi."}, {"text": "I can", "stop_reason": "refusal"}, {"text": "Yes."}]
    async with on_stage(tmp_path, provider=Changed(replies, explain)) as stage:
        await stage.ask("Hello")
        failed = await stage.ask("Something bad")
        await stage.ask("Something good")
    assert "refused to answer (cyber)" in failed.error
    assert not failed.is_retryable
    assert "bad" not in str(stage.provider.requests[2].messages)
    assert stage.happened() == ["refused", "retracted"]
    assert stage.is_valid


async def test_a_full_window_ends_the_turn_with_what_to_do(tmp_path: Folder) -> None:
    replies = [{"text": "As far as", "stop_reason": "model_context_window_exceeded"}]
    async with on_stage(tmp_path, replies) as stage:
        failed = await stage.ask("Go")
    assert "Start a new session" in failed.error
    assert stage.said() == ["As far as"]


async def test_a_nearly_full_window_is_reported(tmp_path: Folder) -> None:
    replies = [{"text": "a", "usage": {"input_tokens": 700}}, {"text": "b", "usage": {"input_tokens": 850}}]
    async with on_stage(tmp_path, replies, info=ModelInfo("script", "scripted", window=1_000)) as stage:
        await stage.ask("one")
        assert stage.of(Notice) == []
        await stage.ask("two")
    assert [event.text for event in stage.of(Notice)] == [
        "The conversation uses 85% of the model's window (1,000 tokens)."
    ]


# Limits.


async def test_the_limit_of_rounds_answers_every_call_and_keeps_the_text_so_far(tmp_path: Folder) -> None:
    calls = [call("think", thought="a", id="a"), call("bash", command="touch x", id="b")]
    replies = [{"text": "First.", "tool_calls": [call("think", thought="0")]}, {"text": "Then.", "tool_calls": calls}]
    async with on_stage(tmp_path, replies, limits=TurnLimits(max_turns=2), mode="bypassPermissions") as stage:
        done = await stage.ask("Go")
        assert (done.reason, done.text, done.turns) == ("max_turns", "Then.", 2)
        for id in ("a", "b"):
            assert "limit of 2 rounds" in str(stage.results[id].content)
            assert stage.results[id].is_error
        assert not (stage.workspace / "x").exists()
        assert stage.is_valid


async def test_the_limit_without_a_last_word_gives_what_was_reported_on_the_way(tmp_path: Folder) -> None:
    replies = [{"text": "Looking.", "tool_calls": [call("think", thought="0")]}, {"tool_calls": [call("think")]}]
    async with on_stage(tmp_path, replies, limits=TurnLimits(max_turns=2)) as stage:
        done = await stage.ask("Go")
    assert done.text == "Looking."


async def test_the_next_prompt_has_its_own_rounds(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="0")]}, {"text": "fine"}]
    async with on_stage(tmp_path, replies, limits=TurnLimits(max_turns=1)) as stage:
        assert (await stage.ask("one")).reason == "max_turns"  # type: ignore[union-attr]
        assert (await stage.ask("two")).reason == "end_turn"  # type: ignore[union-attr]


async def test_a_used_up_budget_stops_before_the_calls_run(tmp_path: Folder) -> None:
    info = ModelInfo("script", "scripted", prices=Prices(input=1.0))
    replies = [
        {"tool_calls": [call("think", thought="0")], "usage": {"input_tokens": 400_000}},
        {"tool_calls": [call("bash", command="touch x", id="b")], "usage": {"input_tokens": 700_000}},
    ]
    budgets = Budgets((Account("session", {"usd": 1.0}),))
    async with on_stage(tmp_path, replies, info=info, budgets=budgets, mode="bypassPermissions") as stage:
        done = await stage.ask("Go")
        assert (done.reason, done.turns, done.cost_usd) == ("max_budget", 2, pytest.approx(1.1))
        assert "budget is used up" in str(stage.results["b"].content)
        assert not (stage.workspace / "x").exists()
        assert stage.is_valid


async def test_a_cost_that_cannot_be_known_is_none_and_not_zero(tmp_path: Folder) -> None:
    info = ModelInfo("script", "scripted")
    async with on_stage(tmp_path, [{"text": "a"}], info=info) as stage:
        done = await stage.ask("one")
    assert done.cost_usd is None
    assert stage.session.state.meter.total.full_cost_usd is None


async def test_session_costs_are_summed_by_model(tmp_path: Folder) -> None:
    dear = ScriptedProvider(
        [{"text": "b", "usage": {"output_tokens": 1_000_000}}],
        info=ModelInfo("dear", "other", prices=Prices(output=3.0)),
    )
    dear.name = "other"
    replies = [{"text": "a", "usage": {"input_tokens": 5}}]
    async with on_stage(tmp_path, replies, others={"other/dear": dear}) as stage:
        await stage.ask("one")
        stage.submit(SetModel("other/dear"))
        await stage.ask("two")
    meter = stage.session.state.meter
    assert meter.by_model == {"scripted/script": (Usage(5), 0.0), "other/dear": (Usage(0, 1_000_000), 3.0)}
    assert (meter.total.usage, meter.total.full_cost_usd) == (Usage(5, 1_000_000), 3.0)


# What providers do wrong.


async def test_a_wrong_key_takes_the_prompt_back(tmp_path: Folder) -> None:
    replies = [{"text": "Hi."}, {"error": {"kind": "auth", "message": "bad key"}}, {"text": "Yes."}]
    async with on_stage(tmp_path, replies) as stage:
        await stage.ask("Hello")
        failed = await stage.ask("This one fails")
        await stage.ask("Again")
    assert failed.error.startswith("bad key. Check the key")
    assert failed.error.endswith("Your message was removed from the conversation.")
    assert (failed.is_retryable, failed.error_type) == (False, "AuthError")
    assert stage.happened() == ["retracted"]
    assert "fails" not in str(stage.provider.requests[2].messages)
    assert stage.prompts() == ["Hello", "This one fails", "Again"]  # the log keeps it


async def test_a_prompt_larger_than_the_window_is_withdrawn(tmp_path: Folder) -> None:
    replies = [{"error": {"kind": "context_overflow"}}, {"text": "Yes."}]
    async with on_stage(tmp_path, replies) as stage:
        failed = await stage.ask("very long")
        await stage.ask("short")
    assert failed.error_type == "ContextOverflow"
    assert "long" not in str(stage.provider.requests[1].messages)


async def test_a_key_that_is_refused_in_a_later_round_takes_nothing_back(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("think", thought="0")]}, {"error": {"kind": "auth"}}, {"text": "Yes."}]
    async with on_stage(tmp_path, replies) as stage:
        failed = await stage.ask("Go")
        await stage.ask("Again")
    assert "removed from" not in failed.error
    assert stage.happened() == []
    assert is_valid(stage.provider.requests[2].messages)


async def test_a_refused_request_keeps_the_prompt(tmp_path: Folder) -> None:
    replies = [{"error": {"kind": "bad_request"}}, {"text": "Yes."}]
    async with on_stage(tmp_path, replies) as stage:
        await stage.ask("one")
        await stage.ask("two")
    assert notes_in(stage.provider.requests[1].messages[0]) == "onetwo"


@pytest.mark.parametrize("kind", ["connection", "timeout", "server", "overloaded", "rate_limit"])
async def test_a_failure_before_any_text_is_retried_and_reported(tmp_path: Folder, kind: str) -> None:
    replies = [{"error": {"kind": kind}}, {"error": {"kind": kind}}, {"text": "There."}]
    async with on_stage(tmp_path, replies) as stage:
        done = await stage.ask("Go")
    assert isinstance(done, Done)
    assert [(event.number, event.error) for event in stage.of(Retry)] == [
        (1, f"scripted {kind} error"),
        (2, f"scripted {kind} error"),
    ]
    assert stage.said() == ["There."]
    assert stage.count(TurnStarted) == 1


@pytest.mark.parametrize("kind", ["connection", "timeout"])
async def test_a_link_lost_after_text_keeps_the_partial_reply_and_is_not_retried(tmp_path: Folder, kind: str) -> None:
    replies = [{"text": "Half of it", "error": {"kind": kind}}, {"text": "All of it."}]
    async with on_stage(tmp_path, replies) as stage:
        failed = await stage.ask("Go")
        assert failed.is_retryable
        assert failed.broke_off
        assert stage.of(Retry) == []
        (partial,) = [entry.body for entry in stage.entries if isinstance(entry.body, Assistant)]
        assert (partial.content, partial.stop_reason) == ((Text("Half of it"),), "interrupted")
        assert partial.usage.prompt_tokens > 0  # an estimate: nothing was reported, and it was paid for
        assert stage.is_valid
        await stage.ask("Go on")
    assert [notes_in(message) for message in stage.provider.requests[1].messages] == ["Go", "Half of it", "Go on"]


async def test_an_answer_that_broke_off_continues_where_it_stopped_however_often_it_takes(tmp_path: Folder) -> None:
    broken = {"error": {"kind": "connection"}}
    replies = [{"text": "Half of", **broken}, *[broken] * 4, {"text": " all ", **broken}, {"text": "of it."}]
    async with on_stage(tmp_path, replies) as stage:
        failed = await stage.ask("Go")
        for number in (2, 3):  # the link is down, then breaks again
            assert failed.broke_off
            stage.submit(GoOn())
            failed = await stage.ended(number)
        stage.submit(GoOn())
        done = await stage.ended(4)
        assert done.text == "Half of all of it."
        assert stage.is_valid
        assert stage.prompts() == ["Go"]
        stage.submit(GoOn())  # nothing has broken off now
        await stage.session.idle()
        assert stage.session.turns_begun == 4
    last = [notes_in(message) for message in stage.provider.requests[-1].messages]
    assert last[:2] == ["Go", "Half of"]
    assert "Continue exactly where it stopped" in last[-1]


async def test_thinking_alone_that_broke_off_is_retried_and_leaves_nothing_behind(tmp_path: Folder) -> None:
    replies = [{"thinking": "Hm", "error": {"kind": "connection"}}, {"text": "Yes."}]
    async with on_stage(tmp_path, replies) as stage:
        assert isinstance(await stage.ask("Go"), Done)
        assert stage.said() == ["Yes."]
    assert len(stage.provider.requests) == 2


async def test_retries_end_in_a_failure_that_can_be_retried(tmp_path: Folder) -> None:
    policy = RetryPolicy(max_retries=2, initial_delay=0.001)
    async with on_stage(tmp_path, [{"error": {"kind": "overloaded"}}] * 3, retry=policy) as stage:
        failed = await stage.ask("Go")
    assert failed.is_retryable
    assert stage.count(Retry) == 2


async def test_the_fallback_model_takes_over_for_good_and_it_is_reported(tmp_path: Folder) -> None:
    spare = ScriptedProvider([{"text": "Spare here."}, {"text": "Still."}], info=ModelInfo("spare", "scripted"))
    policy = RetryPolicy(max_retries=0)
    async with on_stage(
        tmp_path,
        [{"error": {"kind": "overloaded", "message": "no room"}}],
        others={"scripted/spare": spare},
        fallback_model="scripted/spare",
        retry=policy,
    ) as stage:
        first, second = await stage.ask("Go"), await stage.ask("And?")
    assert (first.text, second.text) == ("Spare here.", "Still.")
    assert [event.text for event in stage.of(Notice)] == [
        "scripted/script failed (no room). Continuing with scripted/spare."
    ]


@pytest.mark.parametrize("reason", ["fallback", "budget", "chosen"])
async def test_a_switch_says_why(tmp_path: Folder, reason: Any) -> None:
    other = ScriptedProvider([{"text": "Two."}, {"text": "Three."}], info=ModelInfo("other", "scripted"))
    failing = [{"error": {"kind": "overloaded"}}] if reason == "fallback" else []
    async with on_stage(
        tmp_path,
        [{"text": "One."}, *failing],
        others={"scripted/other": other},
        fallback_model="scripted/other",
        retry=RetryPolicy(max_retries=0),
    ) as stage:
        await stage.ask("one")
        if reason != "fallback":
            stage.submit(SetModel("scripted/other"))
        if reason == "budget":
            stage.session.state.model.switch_reason = "budget"  # as a resolver does that looks at the price
        await stage.ask("two")
        await stage.ask("three")
    assert stage.of(ProviderSwitched) == [ProviderSwitched("scripted/script", "scripted/other", reason)]


@pytest.mark.parametrize("reply", [{"error": {"kind": "auth"}}, {"text": "Half", "error": {"kind": "connection"}}])
async def test_the_fallback_model_is_not_for_a_wrong_key_nor_after_text(tmp_path: Folder, reply: Any) -> None:
    spare = ScriptedProvider([{"text": "Spare here."}])
    async with on_stage(tmp_path, [reply], others={"scripted/spare": spare}, fallback_model="scripted/spare") as stage:
        assert isinstance(await stage.ask("Go"), TurnFailed)
    assert not spare.requests


async def test_another_model_takes_over_in_mid_conversation(tmp_path: Folder) -> None:
    other = ScriptedProvider([{"text": "I am the other."}], info=ModelInfo("other", "scripted"))
    async with on_stage(tmp_path, [{"text": "First."}], others={"scripted/other": other}) as stage:
        await stage.ask("one")
        stage.submit(SetModel("scripted/other"))
        done = await stage.ask("two")
    assert done.text == "I am the other."
    assert stage.of(ProviderSwitched) == [ProviderSwitched("scripted/script", "scripted/other")]
    assert logged.ProviderSwitch("scripted/script", "scripted/other") in [entry.body for entry in stage.entries]
    assert [notes_in(message) for message in other.requests[0].messages] == ["one", "First.", "two"]


async def test_a_model_switched_during_a_turn_answers_its_next_round(tmp_path: Folder) -> None:
    works = Works()
    other = ScriptedProvider([{"text": "Other."}], info=ModelInfo("other", "scripted"))
    async with on_stage(
        tmp_path,
        [{"tool_calls": [call("slow", "a")]}],
        tools=[works.tool("slow", held=True)],
        others={"scripted/other": other},
    ) as stage:
        stage.say("Go")
        await works.begun.wait()
        stage.submit(SetModel("scripted/other"))
        works.gate.set()
        done = await stage.ended()
    assert done.text == "Other."
    assert [type(event) for event in stage.events].index(ProviderSwitched) < len(stage.events)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("No such model: use /model."), "No such model: use /model."),
        (ConnectionFailed("no link"), "no link"),
        (RuntimeError("oops"), "Internal error: RuntimeError('oops')"),
    ],
)
async def test_a_failing_resolver_ends_the_turn_with_an_error_event(
    tmp_path: Folder, error: Exception, told: str
) -> None:
    async def resolve(state: Any) -> Any:
        raise error

    async with on_stage(tmp_path, resolve=resolve) as stage:
        failed = await stage.ask("Go")
        assert told in failed.error
        assert isinstance(await stage.ask("Again"), TurnFailed)
        assert stage.is_valid


async def test_the_context_transform_decides_what_is_sent_and_the_log_keeps_all(tmp_path: Folder) -> None:
    async def newest_only(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return messages[-1:]

    async with on_stage(tmp_path, [{"text": "a"}, {"text": "b"}], context_transform=newest_only) as stage:
        await stage.ask("one")
        await stage.ask("two")
    assert [notes_in(message) for message in stage.provider.requests[1].messages] == ["two"]
    assert stage.prompts() == ["one", "two"]


async def test_temperature_effort_and_length_reach_the_request(tmp_path: Folder) -> None:
    limits = TurnLimits(max_tokens=77)
    async with on_stage(tmp_path, [{"text": "a"}], limits=limits, temperature=0.5, effort="high") as stage:
        await stage.ask("one")
    (request,) = stage.provider.requests
    assert (request.max_tokens, request.temperature, request.effort) == (77, 0.5, "high")


# Hooks.


class Hooks(NoHooks):
    def __init__(self, *, allow: bool = True, failing: str = "") -> None:
        self.allow = allow
        self.failing = failing
        self.turns: list[tuple[Any, ...]] = []
        self.messages: list[Entry] = []
        self.errors: list[tuple[str, bool]] = []

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        self.turns.append((turn, usage, model, provider))
        if self.failing == "on_turn_end":
            raise RuntimeError("guard broke")
        return self.allow

    async def on_message(self, entry: Entry) -> None:
        self.messages.append(entry)
        if self.failing == "on_message":
            raise RuntimeError("watcher broke")

    async def on_error(self, text: str, is_retryable: bool) -> None:
        self.errors.append((text, is_retryable))
        if self.failing == "on_error":
            raise RuntimeError("handler broke")


TWO_ROUNDS = [
    {"text": "Looking.", "tool_calls": [call("think", thought="0", id="t")], "usage": {"output_tokens": 3}},
    {"text": "Done.", "usage": {"output_tokens": 2}},
]


async def test_hooks_see_every_reply_and_every_result(tmp_path: Folder) -> None:
    hooks = Hooks()
    async with on_stage(tmp_path, TWO_ROUNDS, hooks=hooks) as stage:
        await stage.ask("Go")
    assert hooks.turns == [(1, Usage(0, 3), "script", "scripted"), (2, Usage(0, 2), "script", "scripted")]
    assert [type(entry.body) for entry in hooks.messages] == [Assistant, Result, Assistant]
    assert hooks.errors == []


async def test_a_hook_sees_a_reply_that_was_broken_off(tmp_path: Folder) -> None:
    hooks = Hooks()
    replies = [{"text": "Half", "error": {"kind": "connection"}}]
    async with on_stage(tmp_path, replies, hooks=hooks) as stage:
        await stage.ask("Go")
    assert [text for entry in hooks.messages for text in [entry.body.content[0].text]] == ["Half"]  # type: ignore[union-attr]
    assert hooks.errors == [("scripted connection error", True)]


async def test_a_hook_that_says_no_stops_the_turn_before_the_calls(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, TWO_ROUNDS, hooks=Hooks(allow=False)) as stage:
        done = await stage.ask("Go")
    assert (done.reason, done.text, done.turns) == ("stopped", "Looking.", 1)
    assert "a hook stopped this turn" in str(stage.results["t"].content)
    assert stage.is_valid


async def test_an_error_in_on_turn_end_ends_the_turn_with_an_error_event(tmp_path: Folder) -> None:
    hooks = Hooks(failing="on_turn_end")
    async with on_stage(tmp_path, TWO_ROUNDS, hooks=hooks) as stage:
        failed = await stage.ask("Go")
        assert "guard broke" in failed.error
        assert stage.results["t"].is_error
        assert stage.is_valid
        hooks.failing = ""
        assert isinstance(await stage.ask("Again"), Done)


async def test_an_error_in_on_message_is_logged_and_the_turn_continues(
    tmp_path: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with on_stage(tmp_path, TWO_ROUNDS, hooks=Hooks(failing="on_message")) as stage:
            done = await stage.ask("Go")
    assert done.text == "Done."
    assert [record.message for record in caplog.records] == ["on_message failed"] * 3


async def test_an_error_in_on_error_is_ignored(tmp_path: Folder, caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks(failing="on_error")
    with caplog.at_level(logging.INFO):
        async with on_stage(tmp_path, [{"error": {"kind": "auth", "message": "bad key"}}], hooks=hooks) as stage:
            failed = await stage.ask("Go")
    assert failed.error.startswith("bad key")
    assert hooks.errors == [("bad key", False)]
    assert caplog.records == []


async def test_on_error_hears_of_a_failing_resolver(tmp_path: Folder) -> None:
    async def resolve(state: Any) -> Any:
        raise UserError("No such model.")

    hooks = Hooks()
    async with on_stage(tmp_path, resolve=resolve, hooks=hooks) as stage:
        await stage.ask("Go")
    assert hooks.errors == [("No such model.", False)]


async def test_a_bug_in_a_tool_ends_the_turn_and_the_session_continues(tmp_path: Folder) -> None:
    tool = failing_tool("buggy", ZeroDivisionError("division by zero"))
    calls = [call("think", thought="0", id="t"), call("buggy", "x", id="b")]
    replies = [{"tool_calls": calls}, {"text": "Back."}]
    async with on_stage(tmp_path, replies, tools=[tool]) as stage:
        failed = await stage.ask("Go")
        done = await stage.ask("Still there?")
    assert "division by zero" in failed.error
    assert done.text == "Back."
    assert stage.results["b"].is_error
    assert is_valid(stage.provider.requests[1].messages)
    assert stage.is_valid


async def test_prompts_that_wait_can_be_run_after_a_bug(tmp_path: Folder) -> None:
    tool = failing_tool("buggy", ZeroDivisionError())
    async with on_stage(tmp_path, [{"tool_calls": [call("buggy", "x")]}, {"text": "Second."}], tools=[tool]) as stage:
        stage.say("one")
        stage.say("two")
        await stage.ended()
        stage.submit(RunQueued())
        done = await stage.ended(2)
    assert isinstance(stage.ends[0], TurnFailed)
    assert done.text == "Second."


async def test_events_say_what_they_are_when_written_down(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, TWO_ROUNDS) as stage:
        await stage.ask("Go")
    for event in stage.events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event
