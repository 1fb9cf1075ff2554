"""The calls of a reply: what runs together, what is asked, and what the model is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from agentcli.agent.events import Done, OutputDelta, QuestionEvent, ToolFinished, ToolStarted
from agentcli.agent.ops import Approve, SetMode
from agentcli.agent.runtime import TurnLimits
from agentcli.errors import ToolError
from agentcli.llm.messages import Message, ToolUse, Usage
from agentcli.llm.provider import Done as ReplyDone
from agentcli.llm.provider import ReplyLimits, Request, RetryPolicy, StreamEvent
from agentcli.llm.providers.scripted import ScriptedProvider
from agentcli.tools.tool import Tool, ToolContext
from agentcli.tools.tool import ToolOutput as Output
from tests.rows import each_row
from tests.unit.agent.stage import Named, Works, answering, call, failing_tool, on_stage, refusing_preview
from tests.unit.tools.bench import Bench

Folder = Path
END = {"text": "The end."}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def tool_of(kind: str, effect: Any, run: Any) -> Tool:
    return Tool(kind, "Works.", Named, run, effect, source="test")


# What runs together.


async def test_reading_calls_of_one_reply_run_together_up_to_the_limit(tmp_path: Folder) -> None:
    works = Works()
    calls = [call("look", str(n)) for n in range(7)]
    async with on_stage(
        tmp_path, [{"tool_calls": calls}, END], tools=[works.tool("look", held=True)], max_parallel=3
    ) as stage:
        stage.say("Go")
        await stage.heard(ToolStarted, 3)
        await asyncio.sleep(0.01)
        assert works.running == 3
        works.gate.set()
        await stage.ended()
    assert works.most_running == 3
    assert len(works.order) == 14


async def test_changing_calls_run_alone_in_order_and_reading_ones_beside_them_together(tmp_path: Folder) -> None:
    works = Works()
    calls = [call("change" if name in "cd" else "look", name) for name in "abcdef"]
    tools = [works.tool("look"), works.tool("change", "edit")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=tools, mode="acceptEdits") as stage:
        await stage.ask("Go")
    assert works.order[:2] == ["+a", "+b"]
    assert works.order[4:8] == ["+c", "-c", "+d", "-d"]
    assert works.order[8:10] == ["+e", "+f"]


async def test_results_are_in_the_order_of_the_calls_whatever_ended_first(tmp_path: Folder) -> None:
    async def run(given: Named, context: ToolContext) -> Output:
        while given.name == "a" and len(stage.of(ToolFinished)) < 2:
            await asyncio.sleep(0.005)
        return Output(given.name)

    calls = [call("look", name, id=f"id-{name}") for name in "abc"]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=[tool_of("look", "read", run)]) as stage:
        await stage.ask("Go")
    assert stage.of(ToolFinished)[-1].id == "id-a"
    sent = stage.provider.requests[1].messages[-1]
    assert [block.tool_use_id for block in sent.content] == ["id-a", "id-b", "id-c"]  # type: ignore[union-attr]


async def test_one_failing_call_leaves_its_neighbours_alone(tmp_path: Folder) -> None:
    works = Works()
    bad = failing_tool("bad", ToolError("Look elsewhere.", kind="not_found"), "read")
    calls = [call("look", "a", id="a"), call("bad", "b", id="b"), call("look", "c", id="c")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=[works.tool("look"), bad]) as stage:
        await stage.ask("Go")
    assert [(id, result.content, result.is_error) for id, result in stage.results.items()] == [
        ("a", "did a", False),
        ("b", "not_found: Look elsewhere.", True),
        ("c", "did c", False),
    ]


async def test_a_call_is_reported_from_its_start_over_its_output_to_its_result(tmp_path: Folder) -> None:
    replies = [{"tool_calls": [call("bash", command="echo hello", id="c")]}, END]
    async with on_stage(tmp_path, replies) as stage:
        await stage.ask("Go")
    (started,), (shown,), (finished,) = stage.of(ToolStarted), stage.of(OutputDelta), stage.of(ToolFinished)
    assert (started.id, started.name, started.title) == ("c", "bash", "Run echo hello")
    assert (shown.id, shown.text) == ("c", "hello\n")
    assert (finished.id, finished.result.content, finished.summary) == ("c", "hello", "1 line")
    assert finished.duration_ms > 0
    assert finished.structured["exit_code"] == 0


# What the model is told of its mistakes.


async def test_an_unknown_tool_is_answered_with_those_that_exist(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"tool_calls": [call("grpe", "x", id="c")]}, END]) as stage:
        done = await stage.ask("Go")
    assert isinstance(done, Done)
    assert stage.results["c"].is_error
    assert "No tool 'grpe'; there is file_read" in str(stage.results["c"].content)
    assert stage.of(ToolFinished)[0].error_kind == "not_found"


@each_row(
    "tool, input, field",
    [
        ("file_read", {}, "path"),
        ("file_read", {"path": "a", "offset": 0}, "offset"),
        ("file_read", {"path": "a", "offset": "one"}, "offset"),
        ("grep_search", {"pattern": "x", "context": "few"}, "context"),
        ("file_edit", {"path": "a", "edits": [{"old_string": 1}]}, "edits"),
    ],
)
def test_wrong_arguments_are_answered_with_the_field_and_all_that_exist(
    bench: Bench, tool: str, input: dict[str, Any], field: str
) -> None:
    known = bench.tools.get(tool)
    with pytest.raises(ToolError, match=f"^Wrong arguments for {tool}: .*{field}.* It takes ") as caught:
        known.parse(input)
    assert caught.value.kind == "invalid_parameters"


async def test_wrong_arguments_are_a_result(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [{"tool_calls": [call("file_read", id="c")]}, END]) as stage:
        await stage.ask("Go")
    error = stage.of(ToolFinished)[0].error
    assert error is not None
    assert (error.kind, error.call_id) == ("invalid_parameters", "c")
    assert stage.results["c"].content == f"{error.kind}: {error.message}"
    assert "It takes path, offset?, limit?" in error.message


class Unparsed(ScriptedProvider):
    """First a call whose arguments are no JSON object."""

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        if self.requests:
            async for event in super().stream(request):
                yield event
            return
        self.requests.append(request)
        broken = ToolUse("c", "think", {}, unparsed='{"thought": "Hm')
        yield ReplyDone(Message("assistant", (broken,)), "tool_use", Usage(), "script")


async def test_arguments_that_are_not_json_are_answered_and_not_run(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, provider=Unparsed([END])) as stage:
        done = await stage.ask("Go")
    assert isinstance(done, Done)
    assert stage.results["c"].is_error
    assert 'not a JSON object: \'{"thought": "Hm\'' in str(stage.results["c"].content)


@pytest.mark.parametrize(("names", "changes", "ran"), [("xxxx", False, 3), ("xxxyx", False, 5), ("xxxxxx", True, 6)])
async def test_the_same_call_with_the_same_result_is_stopped_the_fourth_time(
    tmp_path: Folder, names: str, changes: bool, ran: int
) -> None:
    numbers = iter(range(100))

    async def run(given: Named, context: ToolContext) -> Output:
        number = next(numbers)
        return Output(str(number if changes else given.name))

    replies = [*[{"tool_calls": [call("look", name, id=f"c{n}")]} for n, name in enumerate(names)], END]
    async with on_stage(tmp_path, replies, tools=[tool_of("look", "read", run)]) as stage:
        await stage.ask("Go")
    assert next(numbers) == ran
    assert ("the same result 3 times in a row" in str(stage.results[f"c{len(names) - 1}"].content)) == (
        ran < len(names)
    )


async def test_a_call_that_the_person_asks_for_again_is_made_again(tmp_path: Folder) -> None:
    replies = [reply for n in range(5) for reply in ({"tool_calls": [call("look", "x", id=f"c{n}")]}, END)]
    works = Works()
    async with on_stage(tmp_path, replies, tools=[works.tool("look")]) as stage:
        for _ in range(5):
            await stage.ask("Look again")
    assert works.order == ["+x", "-x"] * 5


class Big(Struct, frozen=True):
    text: str


async def test_arguments_of_many_megabytes_are_refused(tmp_path: Folder) -> None:
    async def run(given: Big, context: ToolContext) -> Output:
        return Output("ran")

    tool = Tool("big", "Big.", Big, run, "none", source="test")
    replies = [{"tool_calls": [{"name": "big", "input": {"text": "x" * 10_500_000}, "id": "c"}]}, END]
    limits = RetryPolicy(reply_limits=ReplyLimits(32, 32))
    async with on_stage(tmp_path, replies, tools=[tool], retry=limits) as stage:
        await stage.ask("Go")
    assert "larger than 10 MB" in str(stage.results["c"].content)


# Who is asked.


def asking_for(command: str) -> list[dict[str, Any]]:
    return [{"tool_calls": [call("bash", command=command, id="c")]}, {"text": "{{last_result}}"}]


@pytest.mark.parametrize("allowed", [True, False])
async def test_approvals_show_the_exact_command(tmp_path: Folder, allowed: bool) -> None:
    async with on_stage(tmp_path, asking_for("touch made"), can_ask=True) as stage:
        stage.say("Go")
        request = await stage.heard(QuestionEvent)
        assert (request.id, request.title, request.preview) == ("c", "Run touch made", "touch made")
        assert "not known to only read" in request.reason
        assert not (stage.workspace / "made").exists()
        stage.submit(Approve("c", allowed))
        await stage.ended()
        assert (stage.workspace / "made").exists() == allowed
        assert [denied.call.id for denied in stage.ends[-1].denials] == ([] if allowed else ["c"])


@pytest.mark.parametrize(
    ("name", "old", "preview", "result"),
    [
        ("plain.txt", "old", "-old\n+new\n", "+new"),
        (".env", "old", "-old\n+new\n", "+new"),
        ("plain.txt", "other", '"old_string": "other"', "not_found"),
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
async def test_an_edit_outside_the_workspace_asks_and_says_nothing_of_the_file_before_an_approval(
    tmp_path: Folder, name: str, old: str, preview: str, result: str, allowed: bool
) -> None:
    outside, token = tmp_path / name, f"ghp_{'kT9sQ2vXb7LmZr4WcYpH8nDfJ6gA3eU5oR1i'}"
    outside.write_text(f"{token}\nold\n")
    edit = call("file_edit", path=str(outside), old_string=old, new_string="new", id="c")
    async with on_stage(tmp_path, [{"tool_calls": [edit]}, END], can_ask=True, mode="acceptEdits") as stage:
        stage.say("Go")
        request = await stage.heard(QuestionEvent)
        assert preview in request.preview
        assert (token in request.preview, request.hunks) == (False, ())
        stage.submit(Approve("c", allowed))
        await stage.ended()
        assert (result in str(stage.results["c"].content)) is allowed
        assert stage.results["c"].is_error is not (allowed and old == "old")
        assert outside.read_text() == f"{token}\n{'new' if allowed and old == 'old' else 'old'}\n"
        assert stage.session.runtime.calls.workspace.look(outside, "write").place in ("outside", "secret")


@pytest.mark.parametrize(
    ("scope", "commands", "asked"),
    [
        ("once", ["touch made", "touch made"], ["c0", "c1"]),
        ("session", ["touch made", "touch made", "touch other"], ["c0", "c2"]),
        ("session", ["touch a[1]", "touch a[1]", "touch a1"], ["c0", "c2"]),
    ],
)
async def test_an_approval_reaches_once_or_for_the_session_to_this_very_command(
    tmp_path: Folder, scope: str, commands: list[str], asked: list[str]
) -> None:
    calls = [call("bash", command=command, id=f"c{n}") for n, command in enumerate(commands)]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], can_ask=True) as stage:
        answering(stage, allowed=True, scope=scope)
        await stage.ask("Go")
    assert [request.id for request in stage.of(QuestionEvent)] == asked


async def test_with_nobody_to_ask_a_call_is_denied_and_that_is_recorded(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, asking_for("touch made")) as stage:
        done = await stage.ask("Go")
        assert "no one can approve it" in done.text
        assert [(denied.call.id, denied.call.name) for denied in stage.of(Done)[-1].denials] == [("c", "bash")]
        assert not (stage.workspace / "made").exists()
        assert stage.of(ToolFinished)[0].error_kind == "permission_denied"


@pytest.mark.parametrize(
    ("command", "mode", "says"), [("ls", "default", ""), ("rm -rf / x", "bypassPermissions", "denied in every mode")]
)
async def test_reading_and_refused_commands_are_not_asked_about(
    tmp_path: Folder, command: str, mode: Any, says: str
) -> None:
    async with on_stage(tmp_path, asking_for(command), can_ask=True, mode=mode) as stage:
        await stage.ask("Go")
    assert stage.count(QuestionEvent) == 0
    assert stage.results["c"].is_error == bool(says)
    assert says in str(stage.results["c"].content)


async def test_an_edit_that_cannot_apply_fails_before_anybody_is_asked(tmp_path: Folder) -> None:
    async with on_stage(
        tmp_path, [{"tool_calls": [call("edit", id="c")]}, END], tools=[refusing_preview("edit")], can_ask=True
    ) as stage:
        await stage.ask("Go")
    assert stage.count(QuestionEvent) == 0
    assert stage.results["c"].content == "not_found: It cannot apply."


async def test_a_mode_that_changes_during_a_turn_counts_from_the_next_call_on(tmp_path: Folder) -> None:
    calls = [call("bash", command="touch a", id="a"), call("bash", command="touch b", id="b")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], can_ask=True) as stage:
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(SetMode("bypassPermissions"))
        stage.submit(Approve("a", True))
        await stage.ended()
        assert stage.count(QuestionEvent) == 1
        assert (stage.workspace / "b").exists()


async def test_an_answer_to_no_question_is_passed_over(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, asking_for("touch made"), can_ask=True) as stage:
        stage.submit(Approve("c", True))
        stage.submit(Approve("other", True))
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(Approve("other", True))
        await asyncio.sleep(0.01)
        assert not (stage.workspace / "made").exists()
        stage.submit(Approve("c", False))
        stage.submit(Approve("c", True))
        await stage.ended()
        assert not (stage.workspace / "made").exists()


@pytest.mark.parametrize(("max_turns", "asked"), [(1, 0), (2, 1)])
async def test_nobody_is_asked_for_calls_past_the_limit_of_rounds(tmp_path: Folder, max_turns: int, asked: int) -> None:
    async with on_stage(
        tmp_path, asking_for("touch made"), can_ask=True, limits=TurnLimits(max_turns=max_turns)
    ) as stage:
        answering(stage, allowed=True)
        await stage.ask("Go")
    assert stage.count(QuestionEvent) == asked
