"""Calls of a program's own tools that are answered later: by another agent, in another process, or not at all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from agentcli import (
    Agent,
    AgentOptions,
    ClientResult,
    ClientToolRequested,
    Done,
    Text,
    ToolFinished,
    UsageError,
    UserError,
)
from agentcli.errors import StorageError
from agentcli.providers import ToolSpec
from agentcli.stores import MemorySessions, PostgresSessions, SqliteSessions
from tests.app.running import call
from tests.app.test_library_stores import Kept
from tests.conformance.postgres_server import running
from tests.conformance.replies import Call, Said, anthropic_reply, chat_reply
from tests.conformance.servers import anthropic_server, chat_server
from tests.transcripts import is_valid

pytestmark = pytest.mark.usefixtures("library_home")

WEATHER = ToolSpec("weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
Make = Callable[..., Agent]


def asks(*cities: str) -> dict[str, Any]:
    return {"text": "Looking.", "tool_calls": [{**call("weather", city=city), "id": f"in {city}"} for city in cities]}


STORES: dict[str, Callable[[Path], Any]] = {
    "sessions in memory": lambda folder: MemorySessions(),
    "sessions in SQLite": lambda folder: SqliteSessions(folder / "sessions.db"),
    "sessions in Postgres": lambda folder: PostgresSessions(running().url_for(folder)),
    "conversations": lambda folder: Kept(),
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) if "Postgres" in name else name for name in STORES])
def agent(request: pytest.FixtureRequest, tmp_path: Path, work: Path, at_end: AsyncExitStack) -> Make:
    """Makes agents of one conversation, as a web application does for each request."""
    kept = STORES[request.param](tmp_path)
    if not isinstance(kept, Kept):
        at_end.push_async_callback(kept.close)

    def make(*replies: dict[str, Any], user_id: str = "ann") -> Agent:
        (tmp_path / "script.jsonl").write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))
        options = AgentOptions(store=kept, user_id=user_id)
        return Agent(f"scripted/{tmp_path / 'script.jsonl'}", conversation="c1", cwd=work, options=options)

    return make


async def requests_of(agent: Agent) -> Any:
    session = await agent.session()
    provider, _ = await session.runtime.models.resolve(session.state)
    return vars(provider)["requests"]


async def pause(agent: Make, *cities: str) -> Done:
    async with agent(asks(*cities)) as first:
        return await first.run("how is it?", tools=[WEATHER])


async def test_another_agent_continues_with_the_result(agent: Make) -> None:
    paused = await pause(agent, "Rome")
    assert (paused.reason, paused.text) == ("paused", "Looking.")
    assert [(one.id, one.name, one.input) for one in paused.pending] == [("in Rome", "weather", {"city": "Rome"})]
    async with agent({"text": "So: {{last_result}}"}, {"text": "Again."}) as second:
        done = await second.run(ClientResult("in Rome", "sun"))
        assert (done.reason, done.text, done.pending) == ("end_turn", "So: sun", ())
        [request] = await requests_of(second)
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert request.tools[-1] == WEATHER  # the program need not offer it again
        assert (await second.run("and now?")).text == "Again."


async def test_results_may_come_one_after_another_or_together(agent: Make) -> None:
    await pause(agent, "Rome", "Oslo", "Bern")
    async with agent() as second:
        waiting = await second.run(ClientResult("in Oslo", "snow"))
    assert (waiting.reason, [one.id for one in waiting.pending]) == ("paused", ["in Rome", "in Bern"])
    async with agent({"text": "ok"}) as third:
        results = [ClientResult("in Bern", "fog", is_error=True), ClientResult("in Rome", "sun")]
        done = await third.run(results)
        assert (done.reason, done.text, done.turns) == ("end_turn", "ok", 1)
        [request] = await requests_of(third)
    found = {block.tool_use_id: (block.content, block.is_error) for block in request.messages[-1].content}
    assert found == {"in Rome": ("sun", False), "in Oslo": ("snow", False), "in Bern": ("fog", True)}


async def test_a_stream_that_is_left_can_be_continued(agent: Make) -> None:
    async with agent(asks("Rome")) as first:
        async for event in first.stream("how is it?", tools=[WEATHER]):
            if isinstance(event, ClientToolRequested):
                break
    async with agent({"text": "So: {{last_result}}"}) as second:
        assert (await second.run(ClientResult("in Rome", "sun"))).text == "So: sun"


async def test_a_subagent_s_call_is_no_reason_to_wait_for_ever(agent: Make) -> None:
    replies = ({"tool_calls": [call("create_subagent", task="Ask.")]}, asks("Rome"), {"text": "{{last_result}}"})
    async with agent(*replies, {"text": "So: {{last_result}}"}) as one:
        done = await one.run("go", tools=[WEATHER])
    assert (done.reason, done.text.startswith("So: Subagents cannot run this tool.")) == ("end_turn", True)


async def test_a_call_has_one_result(agent: Make) -> None:
    await pause(agent, "Rome")
    async with agent({"text": "ok"}) as second:
        with pytest.raises(UsageError, match=r"No call 'elsewhere' waits for a result: .* Waiting: in Rome"):
            await second.run(ClientResult("elsewhere", "?"))
        with pytest.raises(UsageError, match="together with a prompt"):
            await second.run(ClientResult("in Rome", "sun"), attachments=[Text("and?")])
        assert (await second.run(ClientResult("in Rome", "sun"))).text == "ok"
    async with agent({"text": "twice"}) as third:
        with pytest.raises(UsageError, match=r"it has one already. Waiting: none"):
            await third.run(ClientResult("in Rome", "rain"))


async def test_another_user_is_refused(agent: Make) -> None:
    await pause(agent, "Rome")
    async with agent({"text": "no"}, user_id="bob") as stranger:
        with pytest.raises(UsageError, match="does not belong to bob"):
            await stranger.run(ClientResult("in Rome", "sun"))
    async with agent({"text": "ok"}) as second:
        assert (await second.run(ClientResult("in Rome", "sun"))).text == "ok"


async def test_of_two_agents_with_one_result_only_one_goes_on(agent: Make) -> None:
    await pause(agent, "Rome")
    agents = [agent({"text": "ok"}) for _ in range(2)]
    ends = await asyncio.gather(*(one.run(ClientResult("in Rome", "sun")) for one in agents), return_exceptions=True)
    for one in agents:
        await one.close()
    assert sorted(isinstance(end, UserError) for end in ends) == [False, True]
    async with agent({"text": "later"}) as third:
        await third.run("and?")
        [request] = await requests_of(third)
    results = [block for message in request.messages for block in message.content if hasattr(block, "tool_use_id")]
    assert [(one.tool_use_id, one.content) for one in results] == [("in Rome", "sun")]


async def test_two_results_at_once_are_both_kept(agent: Make) -> None:
    await pause(agent, "Rome", "Oslo")
    ends: list[Done] = []

    async def answer(id: str) -> None:
        while True:
            with suppress(StorageError):  # the other agent has the session open
                async with agent({"text": "ok"}) as one:
                    ends.append(await one.run(ClientResult(id, "sun")))
                return
            await asyncio.sleep(0.05)

    await asyncio.gather(answer("in Rome"), answer("in Oslo"))
    assert sorted(end.reason for end in ends) == ["end_turn", "paused"]


async def test_another_prompt_answers_the_call_as_not_run(agent: Make) -> None:
    await pause(agent, "Rome", "Oslo")
    async with agent() as second:
        await second.run(ClientResult("in Rome", "sun"))
    async with agent({"text": "Fine."}) as third:
        assert (await third.run("never mind")).text == "Fine."
        [request] = await requests_of(third)
    *results, prompt = request.messages[-1].content
    assert {one.tool_use_id: one.content for one in results} == {
        "in Rome": "sun",
        "in Oslo": "Not run: the user sent a new message before the client returned a result.",
    }
    assert prompt.text.endswith("never mind")
    assert is_valid(request.messages)


@pytest.mark.parametrize(
    ("model", "server", "reply"),
    [
        ("anthropic/claude-sonnet-5-5", anthropic_server, anthropic_reply),
        ("openai/test-model", chat_server, chat_reply),
    ],
)
async def test_a_provider_accepts_results_and_their_absence(
    work: Path, monkeypatch: pytest.MonkeyPatch, model: str, server: Any, reply: Any
) -> None:
    """The server answers a request that breaks the rules of the real API with an error."""
    calls = [tuple(Call(f"{city}_{n}", "weather", {"city": city}) for city in ("Rome", "Oslo")) for n in (1, 2)]
    store, name = MemorySessions(), model.partition("/")[0].upper()
    options = AgentOptions(store=store)
    replies = [reply(Said(calls=calls[0])), reply("Fine."), reply(Said("Looking.", calls=calls[1])), reply("Ok.")]
    with server(replies) as api:
        monkeypatch.setenv(f"{name}_BASE_URL", api.url)
        monkeypatch.setenv(f"{name}_API_KEY", "key")

        async def run(content: Any) -> Done:
            async with Agent(model, conversation="c1", cwd=work, options=options) as agent:
                return await agent.run(content, tools=[WEATHER])

        assert (await run("how is it?")).reason == "paused"
        assert (await run([ClientResult("Oslo_1", "snow"), ClientResult("Rome_1", "sun")])).text == "Fine."
        assert (await run("and now?")).reason == "paused"
        assert (await run(ClientResult("Oslo_2", "rain"))).reason == "paused"
        assert (await run("never mind")).text == "Ok."


async def test_a_result_in_another_process_is_reported_like_any_other(agent: Make) -> None:
    await pause(agent, "Rome")
    async with agent({"text": "ok"}) as second:
        session = await second.session()
        heard = session.subscribe()
        await second.run(ClientResult("in Rome", "x" * 40_000, structured={"degrees": 30}))
        await session.close()
        [finished] = [event async for event in heard if isinstance(event, ToolFinished)]
    assert finished.structured == {"degrees": 30}
    assert 'read_more with result_id="in Rome" and page=2 shows the next' in finished.result.text


PROGRAM = """
import asyncio, sys, time
from agentcli import Agent, AgentOptions, ClientResult, ClientToolRequested, UserError
from agentcli.providers import ToolSpec
from agentcli.stores import SqliteSessions

async def main(script, database, result):
    options = AgentOptions(store=SqliteSessions(Path(database)), user_id="ann")
    async with Agent(f"scripted/{script}", conversation="c1", options=options) as agent:
        tools = [ToolSpec("weather", "Tells the weather.", {"type": "object", "properties": {}})]
        if result:
            try:
                print((await agent.run(ClientResult("in Rome", result))).text, flush=True)
            except UserError as error:
                print(type(error).__name__, flush=True)
            return
        async for event in agent.stream("how is it?", tools=tools):
            if isinstance(event, ClientToolRequested):
                print([call.id for call in event.calls], flush=True)

from pathlib import Path
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_another_process_continues_after_the_first_was_killed(tmp_path: Path, work: Path) -> None:
    """Of two that bring the same result at the same time, one continues."""

    def start(reply: dict[str, Any], result: str = "") -> subprocess.Popen[str]:
        script = tmp_path / f"{result or 'first'}.jsonl"
        script.write_text(json.dumps(reply))
        arguments = [str(script), str(tmp_path / "sessions.db"), result]
        program = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.Popen(program, cwd=work, stdout=subprocess.PIPE, text=True)

    with start(asks("Rome")) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "['in Rome']\n"
        first.kill()
    both = [start({"text": "So: {{last_result}}", "delay_ms": 500}, result) for result in ("sun", "rain")]
    refused, answered = sorted((one.communicate(timeout=60)[0].strip() for one in both), key=lambda said: ":" in said)
    assert refused in ("SessionInUse", "UsageError")
    assert answered in ("So: sun", "So: rain")
