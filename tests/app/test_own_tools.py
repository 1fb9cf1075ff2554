"""Functions of a program as tools: their context and its object, their retries, time-outs, locks and levels."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, RetryRule, ToolContext, ToolError, ToolFinished, ToolOutput, UsageError, tool
from tests.app.running import call
from tests.app.test_library_stores import script

pytestmark = pytest.mark.usefixtures("library_home")

AT_ONCE = RetryRule(max_retries=2, first_delay_s=0.0)


@dataclass
class Shop:
    """The object of a program."""

    name: str


@tool
async def shop_name(context: ToolContext[Shop], greeting: str = "") -> str:
    """Tells the name of the shop."""
    return f"{greeting}{context.deps.name}"


@tool
def shop_name_in_a_thread(context: ToolContext) -> str:
    """Tells the name of the shop."""
    return str(context.deps.name)


async def test_deps_reach_the_tools_of_the_prompt_and_of_its_subagents_and_nothing_else(
    tmp_path: Path, work: Path
) -> None:
    delegating = {"tool_calls": [call("create_subagent", task="Ask.")]}
    asking = {"tool_calls": [call("shop_name"), call("shop_name_in_a_thread")]}
    model = script(tmp_path, asking, {"text": "one"}, delegating, asking, {"text": "two"}, {"text": "three"})
    options = AgentOptions(deps=Shop("Fern"))
    async with Agent(model, cwd=work, tools=[shop_name, shop_name_in_a_thread], options=options) as agent:
        for name, deps in (("Rose", Shop("Rose")), ("Fern", None)):
            events = [event async for event in agent.stream("go", deps=deps)]
            texts = [one.result.text for one in events if isinstance(one, ToolFinished) and "shop" in one.name]
            assert texts == [name, name]
        assert (await agent.call_tool("shop_name", {"greeting": "At "})).result.text == "At Fern"
        provider, _ = await (session := await agent.session()).runtime.models.resolve(session.state)
    assert shop_name.spec().input_schema["properties"] == {"greeting": {"type": "string"}}
    assert "Shop(" not in repr(vars(provider))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(("attribute", "is_right"), [("price", False), ("name", True)])
def test_the_type_of_deps_is_checked(tmp_path: Path, attribute: str, is_right: bool) -> None:
    (tmp_path / "shop.py").write_text(
        "from agentcli import RetryRule, ToolContext, tool\n"
        "class Shop:\n    name: str = ''\n"
        "@tool(retry=RetryRule(retry_on={'timeout'}), locks=('city',))\n"
        "def shop(context: ToolContext[Shop], city: str) -> str:\n"
        f"    return context.deps.{attribute}\n"
        "def any_shop(context: ToolContext) -> str:\n    return str(context.deps)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", "shop.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode == 0) == is_right, ran.stdout
    assert is_right or '"Shop" has no attribute "price"' in ran.stdout


# Time-outs and retries


async def waits() -> str:
    """Takes too long."""
    await asyncio.sleep(5)
    return "late"


def raises(error: Exception) -> Callable[[], str]:
    def late() -> str:
        """Is too late."""
        raise error

    return late


async def answer_yes(question: object) -> bool:
    return True


@pytest.mark.parametrize("how", ["raised", "as ToolError", "time_limit_s", "timeout_s", "command"])
async def test_every_time_out_is_one_that_may_pass(tmp_path: Path, work: Path, how: str) -> None:
    errors = {
        "raised": TimeoutError("no answer"),
        "as ToolError": ToolError("no answer", kind="timeout"),
    }
    limit_s = 0.05 if how == "time_limit_s" else 120.0
    late = tool(name="late", time_limit_s=limit_s)(raises(errors[how]) if how in errors else waits)
    agent = Agent(script(tmp_path), cwd=work, tools=[late], approve=answer_yes)
    published = (await agent.session()).subscribe()
    if how == "command":
        ended = await agent.call_tool("bash", {"command": "sleep 5", "timeout_ms": 100})
    else:
        ended = await agent.call_tool("late", {}, timeout_s=0.05 if how == "timeout_s" else None)
    await agent.close()
    assert [event async for event in published if isinstance(event, ToolFinished)] == [ended]
    assert ended.error is not None
    assert (ended.error_kind, ended.error.kind, ended.error.is_retryable) == ("timeout", "timeout", True)
    assert ended.result.is_error
    assert ended.retry_count == 0  # a command or a function may have effects


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({}, 1),
        ({"retry": AT_ONCE}, 3),
        ({"retry": RetryRule(retry_on={"rate_limit"}, first_delay_s=0.0)}, 1),
        ({"retry": AT_ONCE, "effect": "foreign"}, 1),
        ({"retry": AT_ONCE, "effect": "foreign", "is_idempotent": True}, 3),
    ],
)
async def test_a_call_is_repeated_where_its_author_allows_that_and_it_does_nothing_twice(
    tmp_path: Path, work: Path, options: dict[str, Any], runs: int
) -> None:
    ran: list[str] = []

    @tool(**options)
    def late() -> str:
        """Is too late."""
        ran.append("ran")
        raise TimeoutError

    async with Agent(script(tmp_path), cwd=work, tools=[late], approve=answer_yes) as agent:
        ended = await agent.call_tool("late", {})
    assert len(ran) == runs
    assert (ended.retry_count, ended.error_kind) == (runs - 1, "timeout")


def test_an_idempotent_function_is_repeated_by_the_usual_rule() -> None:
    def fetch() -> str:
        """Fetches."""
        return ""

    assert tool(is_idempotent=True)(fetch).retry == RetryRule()


async def test_a_key_is_forgotten_in_time(tmp_path: Path, work: Path) -> None:
    made: list[str] = []

    @tool
    def make() -> str:
        """Makes one."""
        made.append("made")
        return str(len(made))

    async with Agent(script(tmp_path), cwd=work, tools=[make]) as agent:
        for ttl_s in (0.2, 60):
            for _ in range(2):
                await agent.call_tool("make", {}, idempotency_key="k", idempotency_ttl_s=ttl_s)
            await asyncio.sleep(0.25)
        assert (await agent.call_tool("make", {}, idempotency_key="k")).result.text == "2"


# Locks and levels


@pytest.mark.parametrize(
    ("locks", "most_at_once"),
    [((), 2), (("account",), 1), (("amount",), 2), (lambda given: ["bank"], 1), (lambda given: [given["amount"]], 2)],
)
async def test_calls_that_share_a_key_wait_for_each_other(
    tmp_path: Path, work: Path, locks: Any, most_at_once: int
) -> None:
    running: list[int] = []
    counts: list[int] = []

    def count(account: int, amount: int) -> str:
        """Counts the calls that run now."""
        running.append(amount)
        time.sleep(0.2)
        counts.append(len(running))
        running.remove(amount)
        return "counted"

    tools = [tool(name=name, locks=locks)(count) for name in ("add", "take")]
    calls = [call(name, account=7, amount=amount) for amount, name in enumerate(("add", "take"))]
    async with Agent(script(tmp_path, {"tool_calls": calls}, {"text": "ok"}), cwd=work, tools=tools) as agent:
        await agent.run("go")
    assert max(counts) == most_at_once


async def test_a_key_is_held_among_programs_by_the_locks_of_the_agent(tmp_path: Path, work: Path) -> None:
    """Two agents, each with locks of its own on the same folder, as two programs would have them."""
    running: list[str] = []
    counts: list[int] = []

    @tool(locks=("account",))
    async def count(account: int) -> str:
        """Counts the calls that run now."""
        running.append("")
        await asyncio.sleep(0.1)
        counts.append(len(running))
        running.pop()
        return "counted"

    agents = [Agent(script(tmp_path), cwd=work, tools=[count]) for _ in range(2)]
    await asyncio.gather(*(agent.call_tool("count", {"account": 7}) for agent in agents))
    assert counts == [1, 1]
    for agent in agents:
        await agent.close()


async def test_locks_that_cannot_be_had_are_errors(tmp_path: Path, work: Path) -> None:
    def pay(account: int) -> str:
        """Pays."""
        return "paid"

    with pytest.raises(UsageError, match="pay cannot lock 'acount': its arguments are account"):
        tool(locks=("acount",))(pay)
    wrong = tool(locks=lambda given: given["acount"])(pay)
    async with Agent(script(tmp_path), cwd=work, tools=[wrong]) as agent:
        failed = await agent.call_tool("pay", {"account": 7})
    assert failed.result.text == "execution_error: pay failed: KeyError: 'acount'"


@pytest.mark.parametrize(("level", "text"), [("brief", "Found 12 items"), ("full", "[0,1,2,3,4,5,6,7,8,9,10,11]")])
async def test_a_function_may_have_an_output_level(tmp_path: Path, work: Path, level: Any, text: str) -> None:
    @tool(output_level=level)
    def numbers() -> ToolOutput:
        """Lists numbers."""
        return ToolOutput(structured=list(range(12)))

    async with Agent(script(tmp_path), cwd=work, tools=[numbers]) as agent:
        assert (await agent.call_tool("numbers", {})).result.text.splitlines()[0] == text
