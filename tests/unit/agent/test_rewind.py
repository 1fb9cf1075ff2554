"""Going back to a prompt, and the list of tasks: what a conversation says once parts of it were taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentcli.agent.events import EntryStored, ToolFinished
from agentcli.agent.ops import Interrupt, Prompt, RunCommand, SetMode, Steer
from agentcli.agent.state import prompts, todo_items
from agentcli.errors import UserError
from agentcli.llm.messages import Text
from tests.unit.agent.stage import call, on_stage

Folder = Path
END = {"text": "The end."}
PRICED = {"usage": {"input_tokens": 10, "output_tokens": 5}}


async def test_going_back_withdraws_the_prompt_and_all_after_it(tmp_path: Folder) -> None:
    replies = [
        {"text": "One."},
        {"tool_calls": [call("think", thought="a")]},
        {"text": "Two."},
        {"text": "Three."},
        END,
    ]
    async with on_stage(tmp_path, replies) as stage:
        for prompt in ("first", "second"):
            await stage.ask(prompt)
        (first, _), (second, text) = prompts(stage.session.state.conversation)
        assert text == "second"
        assert stage.session.rewind(second) == "second"
        assert prompts(stage.session.state.conversation) == [(first, "first")]
        await stage.ask("instead")
        sent = stage.provider.requests[-1]
        assert [message.text for message in sent.messages] == ["first", "One.", "instead"]
        assert sent.earlier_messages == 1
        stage.session.rewind(first)
        await stage.ask("anew")
        assert [message.text for message in stage.provider.requests[-1].messages] == ["anew"]
        stored = list(stage.entries)
        tokens = stage.session.state.meter.total
    async with on_stage(tmp_path, [END], entries=stored) as stage:
        assert [text for _, text in prompts(stage.session.state.conversation)] == ["anew"]
        assert stage.session.state.meter.total == tokens


async def test_a_prompt_comes_back_as_it_was_typed(tmp_path: Folder) -> None:
    content = (Text("Look at @a.py"), Text('<file path="a.py">\n1\tx\n</file>'))
    async with on_stage(tmp_path, [END]) as stage:
        stage.submit(Prompt(content))
        await stage.ended()
        ((id, text),) = prompts(stage.session.state.conversation)
        assert text == "Look at @a.py"
        assert stage.session.rewind(id) == "Look at @a.py"


async def test_while_a_turn_runs_nobody_goes_back(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "late", "delay_ms": 10_000}]) as stage:
        stage.say("Go")
        await stage.heard(EntryStored)
        with pytest.raises(UserError, match="Interrupt it first"):
            stage.session.rewind(prompts(stage.session.state.conversation)[0][0])
        stage.submit(Interrupt())
        await stage.ended()
        assert stage.session.rewind(prompts(stage.session.state.conversation)[0][0]) == "Go"


async def test_there_is_no_way_back_to_what_is_not_a_prompt_or_was_withdrawn(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END]) as stage:
        await stage.ask("Go")
        (id, _) = prompts(stage.session.state.conversation)[0]
        stage.session.rewind(id)
        for gone in (id, "no-such-entry"):
            with pytest.raises(UserError, match="no such point to rewind to"):
                stage.session.rewind(gone)


async def test_steering_and_queued_messages_are_prompts_and_commands_are_not(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"text": "One.", "delay_ms": 20}, END, END]) as stage:
        stage.submit(RunCommand("echo x"))
        await stage.heard(ToolFinished)
        stage.say("first")
        stage.submit(Steer((Text("psst"),)))
        stage.say("second")
        await stage.ended(2)
        assert [text for _, text in prompts(stage.session.state.conversation)] == ["first", "psst", "second"]


async def test_the_model_learns_of_plan_mode_again_when_that_was_undone(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END, END, END]) as stage:
        await stage.ask("first")
        stage.submit(SetMode("plan"))
        await stage.ask("second")
        stage.session.rewind(prompts(stage.session.state.conversation)[0][0])
        await stage.ask("other")
        assert "Plan mode is on" in stage.provider.requests[-1].messages[0].text
        stage.submit(SetMode("default"))
        await asyncio.sleep(0)
        stage.session.rewind(prompts(stage.session.state.conversation)[0][0])
        await stage.ask("again")
        assert "Plan mode is off" in stage.provider.requests[-1].messages[0].text


# The list of tasks.


async def test_the_newest_list_is_what_there_is_to_do(tmp_path: Folder) -> None:
    lists = [[("look", "pending"), ("mend", "pending")], [("look", "completed"), ("mend", "in_progress")]]
    replies = [
        {"tool_calls": [call("todo", items=[{"content": c, "status": s} for c, s in items], id=f"t{n}")]}
        for n, items in enumerate(lists)
    ]
    bad = {"tool_calls": [call("todo", items=[{"content": "x", "status": "later"}], id="bad")]}
    async with on_stage(tmp_path, [replies[0], END, replies[1], bad, END]) as stage:
        assert todo_items(stage.session.state.conversation.path) == ()
        await stage.ask("first")
        await stage.ask("second")
        assert [(item.content, item.status) for item in todo_items(stage.session.state.conversation.path)] == lists[1]
        assert stage.results["t1"].content == "[x] look\n[>] mend"
        assert "status" in str(stage.results["bad"].content)
        assert [event.summary for event in stage.of(ToolFinished)][:2] == ["0 of 2 done", "1 of 2 done"]
        stage.session.rewind(prompts(stage.session.state.conversation)[1][0])
        assert [(item.content, item.status) for item in todo_items(stage.session.state.conversation.path)] == lists[0]
