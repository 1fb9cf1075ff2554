"""What stands between the model's wish and a tool, stage by stage, seen from a session."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path as Folder
from typing import Any

import pytest

from agentcli.agent.events import ClientToolRequested, ToolFinished, TurnFailed
from agentcli.agent.interfaces import CallRecord, HookAnswer
from agentcli.agent.ops import ClientResult, Interrupt, Prompt
from agentcli.conversation.entries import Result
from agentcli.errors import ToolError, ToolErrorKind
from agentcli.infra.shared import FileLocks
from agentcli.infra.state_files import DataFolder, SessionData
from agentcli.llm.messages import Text, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import ToolSpec
from agentcli.tools.observation import Levels
from agentcli.tools.tool import Effect, RetryRule, Tool, ToolContext, ToolOutput
from tests.unit.agent.stage import Named, Stage, Works, call, on_stage

END = {"text": "Done."}
AT_ONCE = RetryRule(first_delay_s=0.0)
LASTING = ("permission_denied", "invalid_parameters", "not_found", "execution_error", "dependency_error")


class Flaky:
    """A tool's work that fails a number of times before it succeeds."""

    def __init__(self, failures: int, kind: ToolErrorKind, retry_after: float | None = None) -> None:
        self.left = failures
        self.runs = 0
        self._error = lambda: ToolError("Not now.", kind=kind, retry_after=retry_after)

    async def run(self, given: Named, context: ToolContext) -> ToolOutput:
        self.runs += 1
        if self.left:
            self.left -= 1
            raise self._error()
        return ToolOutput("worked")

    def tool(self, effect: Effect = "read", **more: Any) -> Tool:
        return Tool("flaky", "Flaky.", Named, self.run, effect, **{"retry": AT_ONCE, **more})


def finished(stage: Stage) -> ToolFinished:
    return stage.of(ToolFinished)[-1]


async def one_call(folder: Folder, tool: Tool, **more: Any) -> Stage:
    async with on_stage(folder, [{"tool_calls": [call(tool.name, id="c")]}, END], tools=[tool], **more) as stage:
        await stage.ask("Go")
    return stage


# Trying again


@pytest.mark.parametrize(
    ("kind", "effect", "is_idempotent", "failures", "runs"),
    [
        ("timeout", "read", False, 2, 3),
        ("resource_error", "read", False, 2, 3),
        ("timeout", "read", False, 9, 4),
        *((kind, "read", False, 9, 1) for kind in LASTING),
        ("resource_error", "edit", False, 9, 1),
        ("resource_error", "edit", True, 1, 2),
    ],
)
async def test_a_failure_that_may_pass_is_retried_where_that_does_nothing_twice(
    tmp_path: Folder, kind: ToolErrorKind, effect: Effect, is_idempotent: bool, failures: int, runs: int
) -> None:
    flaky = Flaky(failures, kind)
    stage = await one_call(tmp_path, flaky.tool(effect, is_idempotent=is_idempotent), mode="bypassPermissions")
    event = finished(stage)
    assert flaky.runs == runs
    assert (event.retry_count, event.last_error) == (runs - 1, "Not now." if runs > 1 else "")
    assert event.error_kind == ("" if runs > failures else kind)
    (entry,) = [entry.body for entry in stage.entries if isinstance(entry.body, Result)]
    assert (entry.retry_count, entry.last_error) == (event.retry_count, event.last_error)


@pytest.mark.parametrize(
    ("number", "kind", "runs"),
    [(errno.EROFS, "permission_denied", 1), (errno.EACCES, "permission_denied", 1), (errno.EIO, "resource_error", 4)],
)
async def test_permanent_system_errors_are_not_retried(tmp_path: Folder, number: int, kind: str, runs: int) -> None:
    ran = 0

    async def run(given: Named, context: ToolContext) -> ToolOutput:
        nonlocal ran
        ran += 1
        raise OSError(number, "No")

    stage = await one_call(tmp_path, Tool("refused", "Refused.", Named, run, "read", retry=AT_ONCE))
    assert ran == runs
    assert finished(stage).error_kind == kind


def test_waits_grow_by_half_up_to_ten_seconds() -> None:
    waits = [RetryRule().delay(n) for n in range(8)]
    assert waits[:3] == [1.0, 1.5, 2.25]
    assert waits[-1] == 10.0


async def test_a_call_that_runs_out_of_time_leaves_what_it_has_said(tmp_path: Folder) -> None:
    async def run(given: Named, context: ToolContext) -> ToolOutput:
        context.emit("x" * 10_000 + " half")
        await asyncio.sleep(60)
        return ToolOutput("never")

    slow = Tool("slow", "Slow.", Named, run, "none", time_limit_s=0.02, retry=RetryRule(max_retries=0))
    stage = await one_call(tmp_path, slow)
    content = str(stage.results["c"].content)
    assert content == f"{'x' * 100}[9,905 more characters]\n[timeout: slow took longer than 0.02 s.]"
    assert len(content) < 3_000
    assert finished(stage).error_kind == "timeout"


async def test_each_retry_after_a_time_out_has_twice_the_time(tmp_path: Folder) -> None:
    lasted: list[float] = []

    async def run(given: Named, context: ToolContext) -> ToolOutput:
        begun = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(60)
        finally:
            lasted.append(asyncio.get_running_loop().time() - begun)
        return ToolOutput("never")

    slow = Tool("slow", "Slow.", Named, run, "read", time_limit_s=0.02, retry=AT_ONCE)
    await one_call(tmp_path, slow)
    assert len(lasted) == 4
    assert [round(limit, 2) >= 0.02 * 2**n for n, limit in enumerate(lasted)] == [True] * 4


# Replays


@pytest.mark.parametrize("replies", [["aab"], ["a", "a"]])
async def test_calls_that_share_an_id_are_calls_of_their_own(tmp_path: Folder, replies: list[str]) -> None:
    works = Works()
    idempotent = Tool("works", "Works.", Named, works.tool("works", "none").run, "command", is_idempotent=True)
    script = [{"tool_calls": [call("works", name, id="same") for name in names]} for names in replies]
    async with on_stage(tmp_path, [*script, END], tools=[idempotent], mode="bypassPermissions") as stage:
        await stage.ask("Go")
    assert works.order == [step for names in replies for name in names for step in (f"+{name}", f"-{name}")]


# Locks


async def test_calls_that_change_one_file_queue_up(tmp_path: Folder) -> None:
    works = Works()
    inner = works.tool("works", "none")

    async def run(given: Named, context: ToolContext) -> ToolOutput:
        await asyncio.sleep(0.01)
        return await inner.run(given, context)

    tool = Tool("works", "Works.", Named, run, "none", file_arguments=("name",))
    calls = [call("works", name, id=f"c{n}") for n, name in enumerate(["f", "./f", "g"])]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=[tool]) as stage:
        stage.session.runtime.calls.services.locks = FileLocks(tmp_path.parent / "locks")
        await stage.ask("Go")
    assert [step for step in works.order if "g" not in step] == ["+f", "-f", "+./f", "-./f"]


# Hooks


class Watching:
    """Call hooks that note what they saw, and change or refuse calls by a word in them."""

    def __init__(self) -> None:
        self.before: list[tuple[CallRecord, dict[str, Any]]] = []
        self.after: list[tuple[CallRecord, ToolResult]] = []

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        self.before.append((record, input))
        if input.get("name") == "refuse":
            raise ToolError("The hook says no.", kind="permission_denied")
        return HookAnswer(input={"name": "changed"}) if input.get("name") == "change" else None

    async def after_call(self, record: CallRecord, result: ToolResult) -> None:
        self.after.append((record, result))


async def test_hooks_see_the_record_and_may_change_or_refuse(tmp_path: Folder) -> None:
    works, hooks = Works(), Watching()
    calls = [call("works", name, id=name) for name in ("plain", "change", "refuse")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], tools=[works.tool("works", "edit")]) as stage:
        stage.session.runtime.calls.services.hooks = [hooks]
        stage.session.state.mode = "acceptEdits"
        await stage.ask("Go")
    assert {name: result.content for name, result in stage.results.items()} == {
        "plain": "did plain", "change": "did changed", "refuse": "permission_denied: The hook says no.",
    }  # fmt: skip
    record = CallRecord(id="plain", tool="works", version="1", caller="main", mode="acceptEdits")
    assert hooks.before[0] == (record, {"name": "plain"})
    assert hooks.after[0] == (record, stage.results["plain"])


# Observations


THINGS = [{"tool_calls": [call("things", id="c")]}, END]


def listing(items: Any, **more: Any) -> Tool:
    async def run(given: Named, context: ToolContext) -> ToolOutput:
        return ToolOutput(structured=items)

    return Tool("things", "Things.", Named, run, "none", **more)


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("brief", "Found 12 items"),
        ("standard", "\n".join(["Found 12 items:", *map(str, range(10)), "and 2 more"])),
        ("full", "[0,1,2,3,4,5,6,7,8,9,10,11]"),
    ],
)
async def test_structured_results_are_shown_by_the_level_of_the_settings(
    tmp_path: Folder, level: Any, shown: str
) -> None:
    async with on_stage(tmp_path, THINGS, tools=[listing(list(range(12)))]) as stage:
        stage.session.runtime.calls.services.levels = Levels(level)
        await stage.ask("Go")
    assert stage.results["c"].content == shown


async def test_results_are_brief_once_the_window_is_nearly_full(tmp_path: Folder) -> None:
    reply = {"tool_calls": [call("things", id="c")], "usage": {"input_tokens": 801}}
    info = ModelInfo("script", "scripted", window=1_000)
    async with on_stage(tmp_path, [reply, END], tools=[listing([1, 2])], info=info) as stage:
        await stage.ask("Go")
    assert stage.results["c"].content == "Found 2 items"


async def test_a_tool_may_bring_its_own_format(tmp_path: Folder) -> None:
    tool = listing({"a": 1}, show=lambda value, level: f"{level}: {value['a']}")
    assert (await one_call(tmp_path, tool)).results["c"].content == "standard: 1"


async def test_a_long_result_begins_with_its_first_page_and_continues_with_read_more(tmp_path: Folder) -> None:
    text = "".join(f"line {n} é\n" for n in range(6_000))

    async def run(given: Named, context: ToolContext) -> ToolOutput:
        return ToolOutput(text)

    data = DataFolder(folder=tmp_path / "data")
    script = [
        {"tool_calls": [call("long", id="c1")]},
        {
            "tool_calls": [
                {"name": "read_more", "input": {"result_id": "c1", "page": n}, "id": f"p{n}"} for n in (2, 3, 9)
            ]
        },
        END,
    ]
    async with on_stage(tmp_path, script, tools=[Tool("long", "Long.", Named, run, "none")]) as stage:
        stage.session.runtime.calls.workspace.resources.data = SessionData(data, "s")
        await stage.ask("Go")
    first = str(stage.results["c1"].content)
    assert first.endswith('[page 1 of 3; read_more with result_id="c1" and page=2 shows the next]')
    pages = [first, str(stage.results["p2"].content), str(stage.results["p3"].content)]
    assert "\n".join(page.rsplit("\n", 1)[0] for page in pages) == text.rstrip("\n")
    assert all(len(page.encode()) <= 30_200 for page in pages)
    assert stage.results["p9"].is_error
    assert "3 pages" in str(stage.results["p9"].content)


@pytest.mark.parametrize(("level", "shown"), [("brief", "Found 900 items"), ("standard", "and 890 more")])
async def test_read_more_finds_text_that_an_observation_level_left_out(
    tmp_path: Folder, level: Any, shown: str
) -> None:
    items = [{"name": f"item {n}"} for n in range(900)]
    more = {"name": "read_more", "input": {"result_id": "c", "page": 1}, "id": "p1"}
    script = [{"tool_calls": [call("things", id="c")]}, {"tool_calls": [more]}, END]
    async with on_stage(tmp_path, script, tools=[listing(items)]) as stage:
        stage.session.runtime.calls.services.levels = Levels(usual=level)
        stage.session.runtime.calls.workspace.resources.data = SessionData(DataFolder(folder=tmp_path / "data"), "s")
        await stage.ask("Go")
    first = str(stage.results["c"].content)
    assert shown in first
    assert first.endswith('[read_more with result_id="c" and page=1 shows all of it]')
    assert json.loads(str(stage.results["p1"].content).rpartition("\n")[0]) == items


async def test_what_is_shown_whole_is_kept_nowhere_else(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, THINGS, tools=[listing(["one", "two"])]) as stage:
        stage.session.runtime.calls.workspace.resources.data = SessionData(DataFolder(folder=tmp_path / "data"), "s")
        await stage.ask("Go")
    assert stage.results["c"].content == "Found 2 items:\none\ntwo"
    assert not (tmp_path / "data").exists()


async def test_a_result_over_a_megabyte_is_a_file_that_file_read_opens(tmp_path: Folder) -> None:
    async def run(given: Named, context: ToolContext) -> ToolOutput:
        return ToolOutput("0123456789\n" * 100_000, structured=["0123456789"] * 100_000)

    data = DataFolder(folder=tmp_path / "data")
    async with on_stage(
        tmp_path,
        [{"tool_calls": [call("long", id="c1")]}, {"tool_calls": [call("think", thought="Large.", id="c2")]}, END],
        tools=[Tool("long", "Long.", Named, run, "none")],
    ) as stage:
        stage.session.runtime.calls.workspace.resources.data = SessionData(data, "s")
        await stage.ask("Go")
        path = next(word for word in str(stage.results["c1"].content).split() if word.startswith(str(tmp_path)))
        assert "1,100,000 bytes" in str(stage.results["c1"].content)
        assert str(stage.results["c1"].content).endswith(": 100,000 lines, the longest has 10 characters]")
        assert stage.session.runtime.calls.workspace.usable_path(path, "read") == Folder(path).resolve()
        entry = next(e.body for e in stage.entries if isinstance(e.body, Result) and e.id == "c1")
    assert entry.structured == {"omitted": "larger than 1 MB"}
    assert Folder(path).read_text() == "0123456789\n" * 100_000


async def test_a_large_search_is_reported_as_text_alone(tmp_path: Folder) -> None:
    search = call("grep_search", pattern="match", limit=0, id="c1")
    async with on_stage(tmp_path, [{"tool_calls": [search]}, END]) as stage:
        (stage.workspace / "many.txt").write_text("".join(f"a match in line {n}\n" for n in range(40_000)))
        await stage.ask("Go")
        assert finished(stage).structured == {"omitted": "larger than 1 MB"}
        assert finished(stage).summary == "40000 matches in 1 file"
        assert str(stage.results["c1"].content).startswith("many.txt:1:a match in line 0\nmany.txt:2:")


# Client tools


def client_tool(name: str) -> Tool:
    async def run(given: Any, context: ToolContext) -> ToolOutput:
        raise AssertionError("a client's tool does not run here")

    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return Tool(name, "Shows.", Named, run, "none", source="client", mode="client", schema=schema, time_limit_s=None)


async def test_our_calls_run_first_and_then_the_turn_waits_for_the_client_or_an_interrupt(tmp_path: Folder) -> None:
    works = Works()
    calls = [call("ask", "x", id="1"), call("works", "a", id="2"), call("ask", "y", id="3")]
    replies = [{"tool_calls": calls}, END, {"tool_calls": [call("ask", "z", id="4")]}]
    async with on_stage(tmp_path, replies, tools=[works.tool("works"), client_tool("ask")]) as stage:
        stage.say("Go")
        asked = await stage.heard(ClientToolRequested)
        assert [use.id for use in asked.calls] == ["1", "3"]
        assert works.order == ["+a", "-a"]
        stage.submit(ClientResult("3", "yours", structured={"n": 1}))
        assert stage.session.waiting_for_client == {"1"}  # a second result for the call would be refused
        stage.submit(ClientResult("1", "broken", is_error=True))
        await stage.ended()
        stage.say("Again")
        await stage.heard(ClientToolRequested, 2)
        stage.submit(Interrupt())
        await stage.ended(2)
        assert stage.results["4"].is_error
        results = [entry.body for entry in stage.entries if isinstance(entry.body, Result)]
    assert [(r.result.tool_use_id, r.result.content, r.result.is_error) for r in results[:3]] == [
        ("1", "broken", True), ("2", "did a", False), ("3", "yours", False),
    ]  # fmt: skip
    assert stage.is_valid


async def test_a_call_that_lacks_what_the_client_s_schema_wants_never_reaches_it(tmp_path: Folder) -> None:
    reply = {"tool_calls": [{"name": "ask", "input": {}, "id": "1"}, {"name": "ask", "input": {"name": 3}, "id": "2"}]}
    async with on_stage(tmp_path, [reply, END], tools=[client_tool("ask")]) as stage:
        await stage.ask("Go")
    assert "name is missing (string)" in str(stage.results["1"].content)
    assert "of type string" in str(stage.results["2"].content)
    assert not stage.of(ClientToolRequested)


async def test_a_prompt_can_bring_tools_that_the_client_runs(tmp_path: Folder) -> None:
    spec = ToolSpec("look", "Looks at the screen.", {"type": "object", "properties": {"at": {"type": "string"}}})
    asks = {"tool_calls": [{"name": "look", "input": {"at": "door"}, "id": "1"}]}
    async with on_stage(tmp_path, [asks, END, END]) as stage:
        stage.submit(Prompt((Text("Go"),), tools=(spec,)))
        asked = await stage.heard(ClientToolRequested)
        assert asked.calls[0].input == {"at": "door"}
        stage.submit(ClientResult("1", "It is open."))
        await stage.ended()
        stage.submit(Prompt((Text("Again"),), tools=(spec,)))
        await stage.ended(2)
    assert [sum(tool.name == "look" for tool in request.tools) for request in stage.provider.requests] == [1, 1, 1]
    assert stage.results["1"].content == "It is open."


async def test_tools_brought_while_a_turn_runs_are_there_from_the_next_one_on(tmp_path: Folder) -> None:
    works = Works()
    spec = ToolSpec("look", "Looks.", {"type": "object"})
    replies = [{"tool_calls": [call("works", "a", id="1")]}, END, END]
    async with on_stage(tmp_path, replies, tools=[works.tool("works", held=True)]) as stage:
        stage.say("Go")
        await works.begun.wait()
        stage.submit(Prompt((Text("Then"),), tools=(spec,)))
        works.gate.set()
        await stage.ended(2)
    assert [any(tool.name == "look" for tool in r.tools) for r in stage.provider.requests] == [False, False, True]


async def test_a_tool_whose_name_is_taken_is_refused_with_its_prompt(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, [END]) as stage:
        stage.submit(Prompt((Text("Go"),), tools=(ToolSpec("bash", "Mine.", {"type": "object"}),)))
        failed = await stage.heard(TurnFailed)
        assert "two tools named 'bash' (builtin, client)" in failed.error
        await stage.ask("Without it")
    assert len(stage.provider.requests) == 1


class Swapping:
    """Locks beside a program that puts a link in place of the folder `d` once a call was judged."""

    def __init__(self, work: Folder) -> None:
        self._work = work

    @asynccontextmanager
    async def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AsyncIterator[None]:
        (self._work / "d").rename(self._work / "away")
        (self._work / "d").symlink_to(".vscode")
        yield


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("file_write", {"path": "d/new", "content": "x"}),
        ("file_edit", {"path": "d/a", "old_string": "mine", "new_string": "theirs"}),
        ("file_read", {"path": "d/a"}),
        ("file_list", {"path": "d"}),
        ("grep_search", {"path": "d", "pattern": "mine"}),
    ],
)
async def test_a_path_that_leads_elsewhere_after_the_check_is_not_used(
    tmp_path: Folder, tool: str, arguments: dict[str, Any]
) -> None:
    work = tmp_path / "work"
    for name in ("d", ".vscode"):
        (work / name).mkdir(parents=True)
        (work / name / "a").write_text("mine")
    replies = [{"tool_calls": [call(tool, id="c", **arguments)]}, END]
    async with on_stage(tmp_path, replies, mode="acceptEdits") as stage:
        stage.session.runtime.calls.services.locks = Swapping(work)
        await stage.ask("Go")
    result = stage.results["c"]
    assert result.is_error
    assert "leads elsewhere" in str(result.content)
    assert {path.name: path.read_text() for path in (work / ".vscode").iterdir()} == {"a": "mine"}


async def test_a_command_whose_time_is_up_is_an_error_of_that_kind_with_its_output(tmp_path: Folder) -> None:
    command = "yes | head -n 20000; sleep 20"
    replies = [{"tool_calls": [call("bash", id="c", command=command, timeout_ms=400)]}, END]
    async with on_stage(tmp_path, replies, mode="bypassPermissions") as stage:
        await stage.ask("Go")
    (finished,) = stage.of(ToolFinished)
    assert finished.error is not None
    assert (finished.error.kind, finished.error.call_id) == ("timeout", "c")
    assert "ended after 0.4 s" in finished.error.message
    assert str(finished.result.content).startswith("y\ny\n")
    assert len(str(finished.result.content)) < 2_500
    assert finished.structured["timed_out"]
