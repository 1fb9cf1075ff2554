"""The library in other programs: stores, web handlers, tools without a model, providers and servers of one's own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, PermissionSettings, Text
from agentcli.agent.events import Done as TurnDone
from agentcli.agent.events import QuestionEvent, SubagentStarted, TurnFailed
from agentcli.agent.ops import Interrupt, Prompt
from agentcli.app import Builder
from agentcli.cli.subcommands import tools
from agentcli.conversation.entries import SCHEMA_VERSION
from agentcli.errors import AgentcliError, StorageError, ToolError, UsageError
from agentcli.hooks import RemoteResult, RemoteTool
from agentcli.library.functions import to_anthropic_message, to_chat_completion
from agentcli.llm.errors import AuthError, RateLimit
from agentcli.llm.messages import Message, Usage
from agentcli.llm.provider import Done, Health, Request, StreamEvent, TextDelta, TokenCount
from agentcli.settings.load import load_config
from agentcli.stores import MemoryEvents, MemorySessions, SqliteEvents, SqliteSessions, readable_from
from agentcli.tools.own_tools import tool
from agentcli.tools.tool import RetryRule
from tests.app.running import call

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("library_home")


@pytest.fixture
def agent(work: Path) -> Callable[..., Agent]:
    """Makes agents in a folder of their own, of a provider that records."""

    def make(*model: str, options: AgentOptions | None = None, **parameters: Any) -> Agent:
        options = options or AgentOptions()
        if not model and options.provider is None:
            options = replace(options, provider=Recorder())
        return Agent(*model, cwd=work, options=options, **parameters)

    return make


def script(folder: Path, *replies: dict[str, Any]) -> str:
    file = folder / "script.jsonl"
    file.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    return f"scripted/{file}"


Make = Callable[..., Agent]
ECHO = {"text": "{{last_result}}"}


class Recorder:
    """A provider that keeps what it is asked, and says how often that was."""

    name = "own"
    model = "recorder"

    def __init__(self, *calls: dict[str, Any]) -> None:
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        self.requests.append(request)
        said = f"answer {len(self.requests)}"
        yield TextDelta(said)
        yield Done(Message("assistant", (Text(said),)), "end_turn", Usage(output_tokens=2), self.model)

    async def count_tokens(self, request: Request) -> TokenCount:
        return TokenCount(1, exact=True)

    async def health_check(self) -> Health:
        return Health(True, "here")

    async def aclose(self) -> None: ...

    def heard(self) -> str:
        return " ".join(
            block.text for message in self.requests[-1].messages for block in message.content if isinstance(block, Text)
        )


class Kept:
    """Implements `ConversationStore`."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def load(self, conversation_id: str) -> bytes | None:
        return self.kept.get(conversation_id)

    async def save(self, conversation_id: str, data: bytes) -> None:
        self.kept[conversation_id] = data

    async def reset(self, conversation_id: str) -> None:
        self.kept.pop(conversation_id, None)


async def test_a_conversation_is_built_for_one_request_and_dropped_and_can_be_forgotten(agent: Make) -> None:
    store, provider = Kept(), Recorder()

    async def request(user: str, text: str) -> str:
        async with agent(conversation=user, options=AgentOptions(provider=provider, store=store, user_id=user)) as one:
            said = await one.run(text)
            if text == "Forget me.":
                await one.reset()
            return said.text

    await request("ann", "My name is Ann.")
    await request("bob", "And mine is Bob.")
    assert "Ann" not in provider.heard()
    await request("ann", "Who am I?")
    assert "My name is Ann." in provider.heard()
    assert "answer 1" in provider.heard()
    assert "Bob" not in provider.heard()
    await request("ann", "Forget me.")
    assert [*store.kept] == ["bob"]
    await request("ann", "Who am I?")
    assert "Ann" not in provider.heard()


async def test_a_conversation_that_is_somebody_else_s_or_none_at_all_is_refused(agent: Make) -> None:
    store = Kept()
    async with agent(conversation="one", options=AgentOptions(store=store, user_id="ann")) as ann:
        await ann.run("my secret")
    async with agent(conversation="one", options=AgentOptions(store=store, user_id="eve")) as eve:
        for refused in (eve.run("what was it?"), eve.reset()):
            with pytest.raises(UsageError, match="does not belong to eve"):
                await refused
    assert "one" in store.kept
    store.kept["one"] = b"{}"
    async with agent(conversation="one", options=AgentOptions(store=store)) as one:
        with pytest.raises(StorageError, match="cannot be read"):
            await one.run("hello")
    with pytest.raises(UsageError, match="needs the id of a conversation"):
        agent(options=AgentOptions(store=store))
    with pytest.raises(UsageError, match="needs a store that keeps it"):
        agent(conversation="one")
    with pytest.raises(UsageError, match="not dict"):
        agent(conversation="one", options=AgentOptions(store={}))  # type: ignore[arg-type]


async def test_the_parameters_of_the_release_before_still_work(agent: Make, tmp_path: Path) -> None:
    provider, store = Recorder(), Kept()
    with pytest.warns(DeprecationWarning, match="next release") as warned:
        before = agent(
            "", provider=provider, system_prompt="Be brief.", permission_mode="plan", conversation_store=store,
            conversation_id="one", session_id="", store=None,
        )  # fmt: skip
    assert {(str(one.message).split(" now;")[0], one.filename) for one in warned} >= {
        ("Agent(system_prompt=…) is Agent(instructions=…)", __file__),
        ("Agent(conversation_store=…) is Agent(options=AgentOptions(store=…))", __file__),
    }
    async with before:
        await before.run("hello")
        assert (await before.session()).snapshot().mode == "plan"
    assert (provider.requests[0].system, [*store.kept]) == ("Be brief.", ["one"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'systemprompt'"):
        agent(systemprompt="Be brief.")
    with pytest.raises(TypeError, match="Pass only the new one, permissions"):
        agent(permission_mode="plan", permissions="default")
    with pytest.raises(TypeError, match="Pass only the new one, user_id"):
        agent(user_id="", options=AgentOptions(user_id="me"))


async def test_permissions_are_a_mode_or_a_mode_with_rules(agent: Make, work: Path) -> None:
    rules = PermissionSettings(mode="dontAsk", allow=("file_write(a.txt)",))
    settings = {"permissions": {"mode": "bypassPermissions", "deny": ["file_read(b.txt)"]}}
    async with agent(permissions=rules, options=AgentOptions(settings=settings)) as one:
        calls = [("file_write", {"path": name, "content": "x"}) for name in ("a.txt", "b.txt")]
        made = [await one.call_tool(*call) for call in (*calls, ("file_read", {"path": "b.txt"}))]
    assert [result.error_kind for result in made] == ["", "permission_denied", "permission_denied"]


@pytest.mark.parametrize("make", [lambda folder: MemorySessions(), lambda folder: SqliteSessions(folder / "own.db")])
async def test_a_session_of_a_store_continues_and_is_its_user_s(
    make: Callable[[Path], Any], agent: Make, tmp_path: Path
) -> None:
    store, provider = make(tmp_path), Recorder()
    for id, text in (("chat-10", "first"), ("chat-10", "second"), ("chat-1", "an id that begins another one")):
        async with agent(conversation=id, options=AgentOptions(provider=provider, store=store, user_id="ann")) as one:
            await one.run(text)
        assert ("first" in provider.heard()) == (id == "chat-10")
    assert [info.user_id for info in await store.list(user_id="ann")] == ["ann", "ann"]
    async with agent(conversation="chat-10", options=AgentOptions(store=store, user_id="eve")) as eve:
        with pytest.raises(UsageError, match="does not belong to eve"):
            await eve.run("what did they say?")
    await store.close()


async def test_a_call_without_a_model_is_checked_and_made_once(work: Path, agent: Make) -> None:
    asked: list[str] = []

    async def decide(question: QuestionEvent) -> bool:
        asked.append(question.title)
        return "yes.txt" in question.title

    write = {"path": "yes.txt", "content": "x"}
    async with agent(approve=decide) as one:
        made = await asyncio.gather(*(one.call_tool("file_write", write, idempotency_key="k") for _ in range(3)))
        assert (work / "yes.txt").read_text() == "x"
        assert len(asked) == 1
        assert {one.id for one in made} == {made[0].id}
        assert made[0].error is None
        refused = await one.call_tool("file_write", {"path": "no.txt", "content": "x"}, caller_id="shop")
        assert refused.error is not None
        assert refused.error.kind == "permission_denied"
        with pytest.raises(UsageError, match="was already used for another call"):
            await one.call_tool("file_write", {"path": "other.txt", "content": ""}, idempotency_key="k")
        wrong = await one.call_tool("file_raed", {})
        assert wrong.error is not None
        assert wrong.error.kind == "not_found"


async def test_a_call_without_a_model_that_takes_too_long_is_ended(agent: Make) -> None:
    async with agent(permissions="bypassPermissions") as one:
        late = await one.call_tool("bash", {"command": "sleep 30"}, timeout_s=0.3)
        assert late.error is not None
        assert late.error.kind == "timeout"


async def test_files_are_attached_wherever_they_lie(work: Path, agent: Make, tmp_path: Path) -> None:
    (tmp_path / "far.txt").write_text("from far away")
    (work / "near.txt").write_text("from nearby")
    provider = Recorder()
    async with agent(options=AgentOptions(provider=provider)) as one:
        await one.run("Look.", attachments=[tmp_path / "far.txt", "near.txt", Text("and a note")])
        assert all(text in provider.heard() for text in ("from far away", "from nearby", "and a note"))
        with pytest.raises(UsageError, match="cannot be attached"):
            await one.run("Look.", attachments=[tmp_path / "nothing.txt"])


class Calculator:
    """Implements `MCPClient` without a server."""

    name = "calc"

    def __init__(self) -> None:
        self.closed = 0

    async def list_tools(self) -> Sequence[RemoteTool]:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return [RemoteTool("double", "Doubles a number.", schema)]

    async def call_tool(self, name: str, input: dict[str, Any], *, progress: Any, ask: Any) -> RemoteResult:
        if input["n"] < 0:
            raise ToolError("Only numbers from 0 on.", kind="invalid_parameters")
        progress("half way")
        return RemoteResult((Text(str(2 * input["n"])),), {"n": 2 * input["n"]})

    async def close(self) -> None:
        self.closed += 1


async def test_a_connection_to_a_custom_server_is_used_and_closed(agent: Make, tmp_path: Path) -> None:
    model, client = script(tmp_path, {"tool_calls": [call("mcp__calc__double", n=21)]}, ECHO), Calculator()
    async with agent(model, permissions="bypassPermissions", options=AgentOptions(mcp_clients=[client])) as one:
        assert (await one.run("double it")).text == "42"
        wrong = await one.call_tool("mcp__calc__double", {"n": -1})
        assert wrong.error is not None
        assert "The JSON Schema of the arguments" in str(wrong.result.content)
    assert client.closed == 1


async def test_skills_of_a_caller_s_folder_are_offered(agent: Make, tmp_path: Path) -> None:
    folder = tmp_path / "skills/greet"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: greet\ndescription: Greets people of all kinds.\n---\nSay hello.\n")
    provider = Recorder()
    async with agent(options=AgentOptions(provider=provider, skills=[tmp_path / "skills"])) as one:
        await one.run("hello")
    assert "Greets people of all kinds." in provider.requests[0].system


def test_versions_that_can_be_read_are_reported_from_a_table() -> None:
    assert [readable_from(version) for version in range(SCHEMA_VERSION + 2)] == [False, True, True, True, False]


def test_errors_know_whether_trying_again_may_help() -> None:
    assert RateLimit("slow down").is_retryable
    assert not RateLimit("slow down").is_permanent
    assert AuthError("who are you?").is_permanent
    assert ToolError("late", kind="timeout").is_retryable
    assert UsageError("wrong").is_permanent
    assert issubclass(UsageError, AgentcliError)


@pytest.mark.full
@pytest.mark.oracle
async def test_the_forms_of_answers_are_what_the_vendors_sdks_read(agent: Make) -> None:
    from anthropic.types import Message as AnthropicMessage
    from openai.types.chat import ChatCompletion

    async with agent() as one:
        done = await one.run("hello")
    completion = ChatCompletion.model_validate(to_chat_completion(done, model="own"), strict=True)
    assert completion.choices[0].message.content == "answer 1"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 2
    message = AnthropicMessage.model_validate(to_anthropic_message(done, model="own"), strict=True)
    assert message.content[0].text == "answer 1"  # type: ignore[union-attr]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_run(example: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert bool(ran.stdout) == (example.stem != "scripted")  # which only helps the others
    assert not ran.stderr


@pytest.mark.full
@pytest.mark.slow
def test_the_examples_pass_a_strict_type_checker() -> None:
    files = sorted((ROOT / "examples").glob("*.py"))
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", *files],
        cwd=ROOT / "examples", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
def test_run_sync_reaches_a_server_as_often_as_it_likes(agent: Make, tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": ["-I", str(ROOT / "tests/mcp_server.py")]}
    settings = {"mcp_servers": {"test": entry}}
    made = [one for n in range(6) for one in ({"tool_calls": [call("mcp__test__add", a=n, b=1)]}, ECHO)]
    one = agent(script(tmp_path, *made), permissions="bypassPermissions", options=AgentOptions(settings=settings))
    assert [one.run_sync("go").text for _ in range(6)] == [str(n + 1) for n in range(6)]


async def test_calls_at_once_are_asked_about_once_each_and_a_failed_answer_is_raised(agent: Make) -> None:
    asked: list[str] = []

    async def decide(question: QuestionEvent) -> bool:
        asked.append(question.title)
        await asyncio.sleep(0.01)
        if "bad" in question.title:
            raise RuntimeError("nobody knows")
        return True

    async with agent(approve=decide) as one:
        names = ("a", "b", "c")
        await asyncio.gather(*(one.call_tool("file_write", {"path": name, "content": name}) for name in names))
        assert len(asked) == 3
        for _ in range(2):  # a key whose call was not made is not spoiled
            with pytest.raises(RuntimeError, match="nobody knows"):
                await one.call_tool("file_write", {"path": "bad", "content": ""}, idempotency_key="k")


@pytest.mark.parametrize(
    ("kind", "is_idempotent", "times"),
    [
        ("resource_error", False, 1),
        ("timeout", False, 1),
        ("timeout", True, 2),
        ("validation_error", True, 1),
        ("rate_limit", False, 2),
    ],
)
async def test_a_key_makes_a_call_again_only_where_that_does_nothing_twice(
    agent: Make, kind: Any, is_idempotent: bool, times: int
) -> None:
    made: list[str] = []

    async def flaky() -> str:
        """Fails at first."""
        made.append("made")
        if len(made) == 1:
            raise ToolError("not now", kind=kind)
        return "done"

    rule = RetryRule(retry_on=frozenset(), max_retries=1 if is_idempotent else 0)
    made_tool = replace(tool(flaky), is_idempotent=is_idempotent, retry=rule)
    async with agent(tools=[made_tool], permissions="bypassPermissions") as one:
        first = await one.call_tool("flaky", {}, idempotency_key="k")
        again = [await one.call_tool("flaky", {}, idempotency_key="k") for _ in range(2)]
    assert first.result.is_error
    assert [one.result.is_error for one in again] == [times == 1] * 2
    assert len(made) == times


async def test_a_key_whose_call_was_denied_asks_again(agent: Make) -> None:
    said = iter((False, True))

    async def decide(question: Any) -> bool:
        return next(said)

    async with agent(approve=decide) as one:
        made = [await one.call_tool("file_write", {"path": "a", "content": ""}, idempotency_key="k") for _ in "12"]
    assert [one.error_kind for one in made] == ["permission_denied", ""]


async def test_closing_ends_a_call_whose_caller_has_gone(agent: Make) -> None:
    ended: list[str] = []

    async def slow() -> str:
        """Takes long."""
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("ended")
        return "done"

    one = agent(tools=[slow])
    calling = asyncio.create_task(one.call_tool("slow", {}, idempotency_key="k"))
    await asyncio.sleep(0.3)
    calling.cancel()
    await one.close()
    assert ended == ["ended"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_stream_is_kept_for_readers_elsewhere(work: Path, agent: Make, kind: str) -> None:
    """Each event is numbered and stored; who reads later, or from the middle on, reads the same."""
    events = MemoryEvents() if kind == "memory" else SqliteEvents(work.parent / "events.db")
    async with agent(options=AgentOptions(event_store=events)) as one:
        seen = [event async for event in one.stream("one", stream_id="first")]
        assert type(seen[-1]).__name__ == "Done"
        await one.run("two", stream_id="second")
        await one.run("three")
        with pytest.raises(UsageError, match="event store"):
            await agent().run("x", stream_id="y")
    for name, text in (("first", "answer 1"), ("second", "answer 2")):
        state = await events.state(name)
        assert state is not None
        assert state.status == "complete"
        stored = await events.read(name)
        assert [event.id for event in stored] == list(range(1, state.last_id + 1))
        objects = [json.loads(event.data) for event in stored]
        assert (objects[-1]["type"], objects[-1]["result"]) == ("result", text)
        assert any(one["type"] == "stream_event" for one in objects)
        assert await events.read(name, 2) == stored[2:]
    await events.close()


async def test_the_stream_of_a_turn_that_fails_or_is_left_says_so(agent: Make) -> None:
    class Failing(Recorder):
        async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
            raise AuthError("the key is wrong")
            yield

    class Slow(Recorder):
        async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
            yield TextDelta("a")
            await asyncio.sleep(60)

    events = MemoryEvents()
    async with agent(options=AgentOptions(provider=Failing(), event_store=events)) as one:
        with pytest.raises(AgentcliError):
            await one.run("one", stream_id="fails")
    assert (await events.state("fails")).status == "failed"  # type: ignore[union-attr]
    async with agent(options=AgentOptions(provider=Slow(), event_store=events)) as one:
        async for _ in one.stream("one", stream_id="left"):
            break
        for _ in range(100):
            state = await events.state("left")
            if state is not None and state.status != "running":
                break
            await asyncio.sleep(0.05)
    assert json.loads((await events.read("left"))[-1].data)["subtype"] == "interrupted"


async def test_a_subagent_is_closed_however_often_its_parent_is_interrupted(agent: Make, work: Path) -> None:
    steps: list[str] = []
    is_closing = asyncio.Event()

    class SlowToClose(MemorySessions):
        async def create(self, **how: Any) -> Any:
            log = await super().create(**how)
            close = log.close

            async def close_slowly() -> None:
                is_closing.set()
                await asyncio.sleep(0.2)
                await close()
                steps.append("closed")

            log.close = close_slowly  # type: ignore[method-assign]
            return log

    made = script(work, {"tool_calls": [call("create_subagent", task="wait")]}, {"text": "late", "delay_ms": 60_000})
    async with agent(made, options=AgentOptions(store=SlowToClose())) as parent:
        session = await parent.session()
        async with aclosing(session.subscribe()) as events:
            session.submit(Prompt((Text("go"),)))
            async for event in events:
                if isinstance(event, SubagentStarted):
                    await asyncio.sleep(0.3)
                    session.submit(Interrupt())
                    await is_closing.wait()
                    for _ in range(3):
                        session.submit(Interrupt())
                        await asyncio.sleep(0.01)
                if isinstance(event, TurnDone | TurnFailed) and event.agent_id == "main":
                    break
        assert steps == ["closed"]


async def test_tools_run_keeps_so_many_answers_to_be_repeated(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MAX_ANSWERS", 1)
    builder = Builder(load_config(work), store=MemorySessions())
    first, second = (tools.ToolCallLine("file_write", {"path": name, "content": "x"}, name) for name in "ab")
    async with tools.open_bench(builder, builder.tool_registry(), "acceptEdits") as bench:
        await bench.answer(first)
        (work / "a").unlink()
        await bench.answer(first)
        assert not (work / "a").exists()
        await bench.answer(second)
        await bench.answer(first)
        assert (work / "a").exists()
