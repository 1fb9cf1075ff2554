"""The Python Agent SDK of Claude Code drives agentcli, and so do lines of its control protocol written by hand."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import npm
from tests.app.running import PATIENCE_S, Place, Running, call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("place_with_a_file")]

READS = (
    {"thinking": "hm", "text": "I read.", "tool_calls": [call("file_read", path="a.py")]},
    {"text": "It prints hi."},
)
WRITES = ({"tool_calls": [call("file_write", path="made", content="x")]}, {"text": "{{last_result}}"})
TOUCHES = ({"tool_calls": [call("bash", command="touch made")]}, {"text": "{{last_result}}"})


@pytest.fixture
def sdk() -> Any:
    return pytest.importorskip("claude_agent_sdk")


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The path of a program that is agentcli, as the SDKs want it."""
    file = tmp_path / "agentcli"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m agentcli "$@"\n')
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def options(sdk: Any, program: str, place: Place) -> Any:
    """Makes the options of a session in the place, which plays these replies."""

    def make(*replies: dict[str, Any], **more: Any) -> Any:
        common = {"cli_path": program, "cwd": place.folder, "env": place.environment}
        return sdk.ClaudeAgentOptions(model=place.script(*replies), **(common | more))

    return make


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def told(sdk: Any, options: Any, prompt: str = "go") -> list[Any]:
    return [message async for message in sdk.query(prompt=prompt, options=options)]


async def answered(client: Any, prompt: str = "go") -> Any:
    """Send a prompt and return its result."""
    await client.query(prompt)
    return [message async for message in client.receive_response()][-1]


def blocks(messages: list[Any], kind: type) -> list[Any]:
    contents = [message.content for message in messages if isinstance(getattr(message, "content", None), list)]
    return [block for content in contents for block in content if isinstance(block, kind)]


def test_a_query_sees_calls_in_the_words_of_claude_code(sdk: Any, options: Any, place: Place) -> None:
    messages = run(told(sdk, options(*READS, allowed_tools=["Read"])))
    init, result = messages[0], messages[-1]
    assert (init.subtype, init.data["permissionMode"]) == ("init", "default")
    assert {"Read", "Edit", "Bash", "Glob", "Grep", "Task"} <= set(init.data["tools"])
    (use,) = blocks(messages, sdk.ToolUseBlock)
    assert (use.name, use.input) == ("Read", {"file_path": str(place.folder / "a.py")})
    assert [block.thinking for block in blocks(messages, sdk.ThinkingBlock)] == ["hm"]
    assert (result.subtype, result.result, result.num_turns) == ("success", "It prints hi.", 2)
    assert next(iter(result.model_usage.values()))["contextWindow"] > 0


@pytest.mark.full
def test_a_program_decides_about_calls(sdk: Any, options: Any, place: Place) -> None:
    asked: list[Any] = []

    async def decide(tool: str, input: dict[str, Any], context: Any) -> Any:
        asked.append((tool, input))
        if tool == "Bash":
            return sdk.PermissionResultDeny(message="no commands")
        if tool == "AskUserQuestion":
            return sdk.PermissionResultAllow(updated_input={**input, "answers": {"Which colour?": "blue"}})
        if input["content"] == "x":
            return sdk.PermissionResultAllow(updated_input={**input, "content": "changed"})
        return sdk.PermissionResultAllow(updated_permissions=[context.suggestions[-1]])  # accept edits

    asks = {"tool_calls": [call("ask_user", question="Which colour?", options=["red", "blue"])]}
    more = [{"tool_calls": [call("file_write", path=name, content="y")]} for name in ("second", "third")]
    replies = (WRITES[0], asks, *more, TOUCHES[0], {"text": "{{last_result}}"})

    async def work() -> Any:
        async with sdk.ClaudeSDKClient(options(*replies, can_use_tool=decide)) as client:
            return await answered(client)

    assert "no commands" in run(work()).result
    made = {"file_path": str(place.folder / "made"), "content": "x"}
    assert asked[0] == ("Write", made)
    assert asked[-1] == ("Bash", {"command": "touch made"})
    assert [tool for tool, _ in asked] == ["Write", "AskUserQuestion", "Write", "Bash"]
    assert (place.folder / "made").read_text() == "changed"
    assert (place.folder / "third").exists()


@pytest.mark.full
def test_tools_of_the_program_are_tools_of_the_model(sdk: Any, options: Any) -> None:
    @sdk.tool("add", "Adds numbers", {"a": float, "b": float})  # type: ignore[untyped-decorator]
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        if given["b"] == 0:
            raise ValueError("nothing to add")
        return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}

    servers = {"calc": sdk.create_sdk_mcp_server("calc", tools=[add])}
    calls = [[call("mcp__calc__add", a=2, b=b)] for b in (3, 0)]
    replies = [{"tool_calls": uses} for uses in calls] + [{"text": "done"}]
    messages = run(told(sdk, options(*replies, mcp_servers=servers, allowed_tools=["mcp__calc__add"])))
    assert messages[0].data["mcp_servers"] == [{"name": "calc", "status": "connected"}]
    first, second = blocks(messages, sdk.ToolResultBlock)
    assert ("5" in str(first.content), bool(first.is_error)) == (True, False)
    assert ("nothing to add" in str(second.content), second.is_error) == (True, True)


@pytest.mark.full
def test_a_server_is_switched_off_and_on(sdk: Any, options: Any) -> None:
    @sdk.tool("add", "Adds numbers", {"a": float})  # type: ignore[untyped-decorator]
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "sum"}]}

    servers = {"calc": sdk.create_sdk_mcp_server("calc", tools=[add])}
    uses = {"tool_calls": [call("mcp__calc__add", a=2)]}
    replies = (uses, {"text": "{{last_result}}"}, uses, {"text": "{{last_result}}"}, uses, {"text": "{{last_result}}"})

    async def work() -> None:
        chosen = options(*replies, mcp_servers=servers, allowed_tools=["mcp__calc"])
        async with sdk.ClaudeSDKClient(chosen) as client:
            assert "sum" in (await answered(client)).result
            await client.toggle_mcp_server("calc", enabled=False)
            assert [one["status"] for one in (await client.get_mcp_status())["mcpServers"]] == ["disabled"]
            assert "sum" not in (await answered(client)).result
            await client.toggle_mcp_server("calc", enabled=True)
            await client.reconnect_mcp_server("calc")
            assert "sum" in (await answered(client)).result

    run(work())


@pytest.mark.full
def test_hooks_of_the_program_see_change_and_deny_calls(sdk: Any, options: Any, place: Place) -> None:
    seen: list[Any] = []

    async def change(input: dict[str, Any], id: str | None, context: Any) -> dict[str, Any]:
        seen.append((input["tool_name"], input["tool_input"]))
        new = {**input["tool_input"], "file_path": str(place.folder / "other")}
        return {
            "hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": new}
        }

    async def deny(input: dict[str, Any], id: str | None, context: Any) -> dict[str, Any]:
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny",
                                       "permissionDecisionReason": "not here"}}  # fmt: skip

    async def after(input: dict[str, Any], id: str | None, context: Any) -> dict[str, Any]:
        seen.append(input["hook_event_name"])
        return {}

    matchers = [sdk.HookMatcher(matcher="Write|Edit", hooks=[change]), sdk.HookMatcher(matcher="Bash", hooks=[deny])]
    hooks = {"PreToolUse": matchers, "PostToolUse": [sdk.HookMatcher(hooks=[after])]}
    messages = run(told(sdk, options(WRITES[0], *TOUCHES, hooks=hooks)))
    assert "not here" in messages[-1].result
    assert seen == [("Write", {"file_path": str(place.folder / "made"), "content": "x"}), "PostToolUse"]
    assert (place.folder / "other").exists()
    assert not (place.folder / "made").exists()


@pytest.mark.full
def test_a_session_is_interrupted_switched_and_asked_about_itself(sdk: Any, options: Any, place: Place) -> None:
    slow, other = {"text": "one two three", "delay_ms": 20_000}, place.script(*WRITES)

    async def work() -> None:
        async with sdk.ClaudeSDKClient(options(slow, include_partial_messages=True)) as client:
            await client.query("go")
            await asyncio.sleep(1)
            await client.interrupt()
            result = [message async for message in client.receive_response()][-1]
            assert (result.subtype, result.is_error) == ("error_during_execution", True)
            await client.set_permission_mode("acceptEdits")
            await client.set_model(other)
            await client.query("again")
            messages = [message async for message in client.receive_response()]
            assert (place.folder / "made").exists()
            deltas = [message.event.get("delta", {}) for message in messages if isinstance(message, sdk.StreamEvent)]
            (arguments,) = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
            assert json.loads(arguments) == {"file_path": str(place.folder / "made"), "content": "x"}
            usage = await client.get_context_usage()
            assert usage["totalTokens"] == sum(one["tokens"] for one in usage["categories"] if one["kind"] == "used")
            assert await client.get_mcp_status() == {"mcpServers": []}
            with pytest.raises(Exception, match="No subagent 'nothing' is running"):
                await client.stop_task("nothing")

    run(work())


@pytest.mark.full
def test_a_session_goes_on_in_copies_and_from_a_message(sdk: Any, options: Any, place: Place) -> None:
    first = run(told(sdk, options({"text": "one"})))
    id, answer = first[-1].session_id, first[-2].uuid
    second = run(told(sdk, options({"text": "two"}, resume=id, fork_session=True)))
    assert (second[-1].result, second[-1].session_id == id) == ("two", False)
    run(told(sdk, options({"text": "later"}, resume=id), "more"))
    run(told(sdk, options({"text": "end"}, resume=id, resume_session_at=answer), "instead"))
    shown = json.dumps(json.loads(place.run("sessions", "show", id, "--json").out)["messages"])
    assert ("more" in shown, "instead" in shown) == (False, True)


@pytest.mark.full
def test_answers_fit_a_schema_and_agents_are_the_programs_own(sdk: Any, options: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    agents = {"counter": sdk.AgentDefinition(description="counts", prompt="You count.", tools=["Read"])}
    replies = (
        {"tool_calls": [call("create_subagent", task="count", agent="counter")]},
        {"text": "3"},
        {"text": '{"n": 3}'},
    )
    output_format = {"type": "json_schema", "schema": schema}
    messages = run(told(sdk, options(*replies, agents=agents, output_format=output_format)))
    assert {"counter", "explore"} <= set(messages[0].data["agents"])
    assert messages[-1].structured_output == {"n": 3}
    (started,) = [message for message in messages if isinstance(message, sdk.TaskStartedMessage)]
    assert (started.data["subagent_type"], started.description) == ("counter", "count")


@pytest.mark.full
def test_files_go_back_to_a_prompt(sdk: Any, options: Any, place: Place) -> None:
    more = {"extra_args": {"replay-user-messages": None}, "permission_mode": "acceptEdits"}

    async def work() -> None:
        async with sdk.ClaudeSDKClient(options(*WRITES, enable_file_checkpointing=True, **more)) as client:
            await client.query("go")
            prompts = [one.uuid async for one in client.receive_response() if isinstance(one, sdk.UserMessage)]
            assert (place.folder / "made").exists()
            await client.rewind_files(prompts[0])
            assert not (place.folder / "made").exists()

    run(work())


@pytest.mark.full
def test_a_session_resumes_from_the_store_of_a_program(sdk: Any, options: Any, place: Place) -> None:
    store, env = (
        sdk.InMemorySessionStore(),
        {**place.environment, "CLAUDE_CONFIG_DIR": str(place.folder.parent / "claude")},
    )
    looks = ({"tool_calls": [call("file_read", path="a.py")]}, {"text": "It prints hi."})
    id = run(told(sdk, options(*looks, session_store=store, env=env), "look"))[-1].session_id
    for file in place.home.glob("state/sessions.db*"):
        file.unlink()
    assert (
        run(told(sdk, options({"text": "more"}, session_store=store, resume=id, env=env), "and"))[-1].session_id == id
    )
    shown = json.loads(place.run("sessions", "show", id, "--json").out)["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert "It prints hi." in json.dumps(shown)


# The lines themselves


def lines(*objects: dict[str, Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in objects)


STARTED_BY_AN_SDK = {"CLAUDE_CODE_ENTRYPOINT": "sdk-py"}


def request(id: str, subtype: str, **fields: Any) -> dict[str, Any]:
    return {"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}}


def test_every_request_is_answered_and_unknown_ones_with_an_error(place: Place) -> None:
    flags = ("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
    prompt = {"type": "user", "message": {"role": "user", "content": "go"}, "parent_tool_use_id": None}
    asked = [
        request("1", "initialize"),
        request("2", "paint"),
        request("3", "stop_task", task_id=5),
        prompt,
        request("4", "get_context_usage"),
    ]
    ran = place.run(*flags, "-m", place.script({"text": "hi"}), stdin=lines(*asked), env=STARTED_BY_AN_SDK)
    responses = {one["response"]["request_id"]: one["response"] for one in ran.of("control_response")}
    assert {id: one["subtype"] for id, one in responses.items()} == {
        "1": "success", "2": "error", "3": "error", "4": "success",
    }  # fmt: skip
    assert responses["1"]["response"]["commands"]
    assert "no control request 'paint'" in responses["2"]["error"]
    assert (ran.of("result")[0]["result"], ran.code) == ("hi", 0)
    assert [one["permissionMode"] for one in ran.of("system", "init")] == ["default"]


def test_a_retry_says_how_many_there_may_be(place: Place) -> None:
    flags = ("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
    prompt = {"type": "user", "message": {"role": "user", "content": "go"}, "parent_tool_use_id": None}
    asked = lines(request("1", "initialize"), prompt)
    model = place.script({"error": {"kind": "server"}}, {"text": "hi"})
    fast = STARTED_BY_AN_SDK | {"AGENTCLI_RETRY_INITIAL_DELAY": "0.01", "AGENTCLI_RETRY_MAX": "3"}
    ran = place.run(*flags, "-m", model, stdin=asked, env=fast)
    assert [(one["attempt"], one["max_retries"]) for one in ran.of("system", "api_retry")] == [(1, 3)]


def response(id: str, answer: Any) -> dict[str, Any]:
    return {"type": "control_response", "response": {"subtype": "success", "request_id": id, "response": answer}}


def answer_first(client: Running, answer: Any) -> None:
    """Answer the first request with this."""
    client.send(response(client.wait_for_type("control_request")["request_id"], answer))


@pytest.mark.parametrize(
    "answer",
    [
        {"behavior": "allow", "updatedInput": [1]},
        {"behavior": "allow", "updatedPermissions": [{"type": "addRules", "behavior": "deny", "rules": ["Bash"]}]},
        ["allow"],
    ],
)
def test_an_answer_that_makes_no_sense_is_a_no(place: Place, answer: Any) -> None:
    with place.talk(place.script(*WRITES), "--permission-prompt-tool", "stdio") as client:
        client.send(request("1", "initialize"))
        client.say("go")
        answer_first(client, answer)
        result = client.wait_for_type("result")
    assert (result["subtype"], len(result["permission_denials"])) == ("success", 1)
    assert not (place.folder / "made").exists()


def is_message(method: str, line: dict[str, Any]) -> bool:
    """Return True for a request that carries this method of MCP to a server."""
    return bool(line.get("request", {}).get("message", {}).get("method") == method)


@pytest.mark.full
def test_a_server_of_the_program_that_answers_nonsense_fails_the_call(place: Place) -> None:
    results = {"initialize": {}, "tools/list": {"tools": [{"name": "add"}]}, "tools/call": {"content": 5}}
    model = place.script({"tool_calls": [call("mcp__calc__add")]}, {"text": "{{last_result}}"})
    with place.talk(model, "--permission-mode", "bypassPermissions") as client:
        client.send(request("1", "initialize", sdkMcpServers=["calc"]))
        client.say("go")
        for method, result in results.items():
            asked = client.wait_for(partial(is_message, method))
            answer = {"mcp_response": {"id": asked["request"]["message"]["id"], "result": result}}
            client.send(response(asked["request_id"], answer))
        assert "gave no valid answer to tools/call" in client.wait_for_type("result")["result"]


HOOK = {"matcher": "Write", "hookCallbackIds": ["guard"]}


@pytest.mark.parametrize("required", [False, True])
def test_a_hook_that_did_not_answer_lets_nothing_through(place: Place, required: bool) -> None:
    """Its program ends its input; that of a required one may also answer with something that is no object."""
    hook = HOOK | ({"onFailure": "block"} if required else {})
    with place.talk(place.script(*WRITES), "--permission-mode", "bypassPermissions") as client:
        client.send(request("1", "initialize", hooks={"PreToolUse": [hook]}))
        client.say("go")
        if required:
            answer_first(client, ["deny"])
        else:
            client.wait_for_type("control_request")
        (result,) = client.ended().of("result")
    assert "required hook failed" in result["result"]
    assert not (place.folder / "made").exists()


@pytest.mark.full
def test_a_first_request_that_comes_late_is_answered_too(place: Place) -> None:
    with place.talk(place.script(*[{"text": "hi"}] * 3)) as client:
        client.wait_for_type("system", "init")
        client.send(request("1", "initialize", jsonSchema={"type": "string"}))
        client.wait_for_type("control_response")
        client.send({"type": "user", "message": {"role": "user", "content": "go"}})
        assert client.wait_for_type("result")["subtype"] == "error_max_structured_output_retries"


@pytest.mark.parametrize(
    ("flags", "fields", "why"),
    [
        (("--resume", "nothing"), {}, "There is no session 'nothing'"),
        ((), {"hooks": 5}, "The initialize request is not valid"),
        ((), {"mcpServers": "x"}, "The initialize request is not valid"),
        ((), {"hooks": {"PreToolUse": [HOOK | {"matcher": "("}]}}, "hooks.PreToolUse: it is skipped (missing )"),
        ((), {"jsonSchema": {"type": "nonsense"}}, "--json-schema is not valid"),
        (("--agent", "nobody"), {"agents": {"some": {"description": "d", "prompt": "p"}}}, "Unknown agent 'nobody'"),
    ],
)
def test_a_session_that_cannot_begin_is_an_error_of_the_first_request(
    place: Place, flags: tuple[str, ...], fields: dict[str, Any], why: str
) -> None:
    flags = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", *flags)
    begins = lines(request("1", "initialize", **fields))
    ran = place.run(*flags, "-m", place.script({"text": "hi"}), stdin=begins, env=STARTED_BY_AN_SDK)
    (response,) = ran.of("control_response")
    assert response["response"]["subtype"] == "error"
    assert why in response["response"]["error"]
    assert ran.code != 0


@pytest.mark.full
def test_the_sdk_of_npm_drives_it_too(program: str, place: Place) -> None:
    folder = npm.installed("@anthropic-ai/claude-agent-sdk@0.3.332", "zod@4", omits_optional=True)
    script = folder.parents[1] / "agent_sdk.mjs"  # beside the packages, which it imports
    script.write_text(Path(__file__).with_name("agent_sdk.mjs").read_text())
    sums = ({"tool_calls": [call("mcp__calc__add", a=2, b=3)]}, {"text": "{{last_result}}"})
    models = [place.script(*replies) for replies in (WRITES, sums, TOUCHES)]
    ran = subprocess.run(
        [folder / "node", script, program, place.folder, *models],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    asked, wrote, added, denied = map(json.loads, ran.stdout.splitlines())
    assert (asked["asked"], asked["input"]["file_path"]) == ("Write", str(place.folder / "made"))
    assert (wrote["subtype"], added["result"]) == ("success", "5")
    assert "not here" in denied["result"]
