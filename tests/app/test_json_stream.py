"""`--output-format stream-json`: one object a line, the result always last; and the same way in."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.app.running import Place, Ran, Running, call, wait_until
from tests.conformance.replies import Call, Said, anthropic_reply, anthropic_sse
from tests.conformance.servers import Reply, anthropic_server

# each test starts the program; its folder has a file
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("place_with_a_file")]

STREAM = ("--output-format", "stream-json")
BOTH = (*STREAM, "--input-format", "stream-json")
TURN = (
    {"thinking": "Hm, a.py.", "text": "Let me look.", "chunk": 5, "tool_calls": [call("file_read", path="a.py")]},
    {"text": "It prints hi.", "chunk": 5, "usage": {"input_tokens": 7, "output_tokens": 3}},
)
ASKS = ({"tool_calls": [call("bash", command="touch made")]}, {"text": "So: {{last_result}}"})
SLOW = {"text": "one two three four five six", "chunk": 4, "delay_ms": 100}
VERY_SLOW = {**SLOW, "delay_ms": 3_000}


def is_stream(ran: Ran) -> bool:
    """Begins with init, ends with a result, and nothing but objects in between."""
    kinds = {"system", "assistant", "user", "stream_event", "result"}
    first, last = ran.lines[0], ran.lines[-1]
    assert (first["type"], first["subtype"]) == ("system", "init")
    assert last["type"] == "result"
    assert {line["type"] for line in ran.lines} <= kinds
    assert ran.out.endswith("\n")
    assert "\r" not in ran.out
    assert "Traceback" not in ran.err
    assert "Fatal" not in ran.err
    return True


def texts_of(ran: Ran, type: str) -> list[Any]:
    return [line["message"]["content"] for line in ran.of(type)]


def test_a_turn_is_reported_from_init_to_result(place: Place) -> None:
    ran = place.run("-m", place.script(*TURN), "-p", "what is a.py?", *STREAM)
    assert ran.code == 0
    assert is_stream(ran)
    init = ran.lines[0]
    assert (init["cwd"], init["permission_mode"]) == (str(place.folder), "default")
    names = "file_read file_write file_edit file_list grep_search bash jobs web_fetch read_more memory recall"
    assert init["tools"] == [*names.split(), "create_subagent", "ask_user", "think", "todo"]
    assert init["model"].startswith("scripted/")
    assert (init["mcp_servers"], "code-review" in init["skills"]) == ([], True)
    first, second = ran.of("assistant")
    thought, *others = first["message"]["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Hm, a.py.")
    assert others == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1_1", "name": "file_read", "input": {"path": "a.py"}},
    ]
    assert (first["message"]["role"], first["message"]["stop_reason"]) == ("assistant", "tool_use")
    assert second["message"]["usage"]["input_tokens"] == 7
    assert first["parent_tool_use_id"] is None
    assert texts_of(ran, "user") == [[{"type": "tool_result", "tool_use_id": "call_1_1", "content": '1\tprint("hi")'}]]
    assert ran.result["result"] == "It prints hi."
    assert {line["session_id"] for line in ran.lines} == {init["session_id"]}
    assert ran.of("stream_event") == []


def test_a_search_is_offered_only_with_a_key(place: Place) -> None:
    flags = ("-m", place.script({"text": "Hi."}), "-p", "hi", *STREAM)
    assert "web_search" not in place.run(*flags).lines[0]["tools"]
    assert "web_search" in place.run(*flags, env={"TAVILY_API_KEY": "tvly-1"}).lines[0]["tools"]
    named = place.run(*flags, "--tools", "file_read,web_search")
    assert named.lines[0]["tools"] == ["file_read"]
    assert "TAVILY_API_KEY" in named.err


def test_partial_messages_are_the_stream_of_the_messages_api(place: Place) -> None:
    ran = place.run("-m", place.script(*TURN), "-p", "go", *STREAM, "--include-partial-messages")
    assert is_stream(ran)
    events = [line["event"] for line in ran.of("stream_event")]
    assert [event["type"] for event in events if event["type"] != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "content_block_start", "content_block_stop",
        "content_block_start", "content_block_stop", "message_delta", "message_stop",
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    first = events[: [event["type"] for event in events].index("message_stop")]
    deltas = [event for event in first if event["type"] == "content_block_delta"]
    assert "".join(d["delta"].get("thinking", "") for d in deltas if d["index"] == 0) == "Hm, a.py."
    assert "".join(d["delta"].get("text", "") for d in deltas if d["index"] == 1) == "Let me look."
    assert "".join(d["delta"].get("partial_json", "") for d in deltas if d["index"] == 2) == '{"path":"a.py"}'
    assert [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"] == ["tool_use", "end_turn"]


@pytest.mark.oracle
def test_the_vendor_s_sdk_builds_the_same_messages_of_the_partial_ones(place: Place) -> None:
    import anthropic

    ran = place.run("-m", place.script(*TURN), "-p", "go", *STREAM, "--include-partial-messages")
    events = [line["event"] for line in ran.of("stream_event")]
    told = [line["message"] for line in ran.of("assistant")]
    ends = [n for n, event in enumerate(events, 1) if event["type"] == "message_stop"]
    assert len(ends) == len(told) == 2
    for start, end, said in zip([0, *ends], ends, told, strict=False):
        with anthropic_server([Reply(anthropic_sse(events[start:end]))]) as server:
            client = anthropic.Anthropic(api_key="k", base_url=server.url, max_retries=0)
            asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}
            with client.messages.stream(**asked) as stream:
                message = stream.get_final_message()
        blocks = [block.model_dump(mode="json") for block in message.content]
        assert [
            {key: block[key] for key in ours if key != "signature"}
            for block, ours in zip(blocks, said["content"], strict=True)
        ] == [{key: value for key, value in ours.items() if key != "signature"} for ours in said["content"]]
        assert (message.stop_reason, message.model) == (said["stop_reason"], said["model"])
        assert message.usage.output_tokens == said["usage"]["output_tokens"]


def test_a_text_attaches_the_files_that_it_names_and_blocks_stay_as_they_are(place: Place) -> None:
    blocks = [{"type": "text", "text": "and in @a.py?"}]
    lines = [{"type": "user", "message": {"role": "user", "content": said}} for said in ("what is @a.py?", blocks)]
    with anthropic_server([anthropic_reply("It prints hi.")] * 2) as server:
        env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        flags = ("-m", "anthropic/claude-sonnet-5-5", *BOTH)
        ran = place.run(*flags, env=env, stdin="".join(json.dumps(line) + "\n" for line in lines))
    assert ran.code == 0, ran.err
    named, _, plain = (message["content"] for message in server.requests[1].json["messages"])
    assert [block["text"].partition("\n")[0] for block in named][1:] == ["what is @a.py?", '<file path="a.py">']
    assert [block["text"] for block in plain] == ["and in @a.py?"]


def test_a_call_that_broke_off_and_is_asked_for_again_is_a_message_of_its_own(place: Place) -> None:
    said = anthropic_reply(Said(calls=(Call("toolu_1", "think", {"thought": "Hm."}),)))
    broken = said.but(breaks_after=said.body.index(b"input_json_delta"))
    with anthropic_server([broken, said, anthropic_reply("Done.")]) as server:
        env = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        flags = ("-m", "anthropic/claude-sonnet-5-5", "-p", "go", *STREAM, "--include-partial-messages")
        ran = place.run(*flags, env=env)
    assert ran.of("system", "retry")
    events = [line["event"] for line in ran.of("stream_event") if line["event"]["type"] != "content_block_delta"]
    one = ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert [event["type"] for event in events] == one * 3
    assert [event["index"] for event in events if "index" in event] == [0] * 6


def test_a_reply_that_breaks_off_ends_its_partial_message_too(place: Place) -> None:
    model = place.script({"text": "Half an ans", "error": {"kind": "connection"}}, *[{"error": {"kind": "auth"}}] * 2)
    ran = place.run("-m", model, "-p", "go", *STREAM, "--include-partial-messages")
    events = [
        line["event"]["type"] for line in ran.of("stream_event") if line["event"]["type"] != "content_block_delta"
    ]
    assert events == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def test_what_happens_in_between_is_reported(place: Place) -> None:
    model = place.script({"error": {"kind": "overloaded", "message": "No room."}}, {"text": "There."})
    ran = place.run("-m", model, "-p", "go", *STREAM)
    (retry,) = ran.of("system", "retry")
    assert (retry["number"], retry["error"]) == (1, "No room.")
    assert ran.err == ""


@pytest.mark.parametrize(
    ("replies", "flags", "code", "subtype", "reason"),
    [
        (TURN, ["--max-turns", "1"], 53, "error_max_turns", "max_turns"),
        (({"error": {"kind": "auth"}},), [], 1, "error_during_execution", "AuthError"),
        (({"text": "Half", "error": {"kind": "connection"}},) * 2, [], 1, "error_during_execution", "ConnectionFailed"),
        (ASKS, ["--fail-on-denial"], 56, "error_permission", "permission_denied"),
        (({"text": "No.", "stop_reason": "refusal"},), [], 1, "error_during_execution", "UserError"),
        ((), [], 1, "error_during_execution", "BadRequest"),
    ],
)
def test_the_result_is_last_however_it_ends(
    place: Place, replies: Any, flags: list[str], code: int, subtype: str, reason: str
) -> None:
    ran = place.run("-m", place.script(*replies), "-p", "go", *STREAM, *flags)
    assert is_stream(ran)
    assert (ran.code, ran.result["subtype"], ran.result["terminal_reason"]) == (code, subtype, reason)
    assert ran.result["is_error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", ["text", "call"])
def test_the_result_is_last_after_a_signal_too(place: Place, number: signal.Signals, code: int, moment: str) -> None:
    replies = {"text": SLOW, "call": {"tool_calls": [call("bash", command="touch begun; exec sleep 30")]}}
    flags = ("--include-partial-messages", "--permission-mode", "bypassPermissions")
    with place.start("-m", place.script(replies[moment]), "-p", "go", *STREAM, *flags) as running:
        if moment == "text":
            running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
        else:
            wait_until((place.folder / "begun").exists, "the command")
        running.signal(number)
        ran = running.left()
    assert ran.code == code
    assert is_stream(ran)
    assert (ran.result["subtype"], ran.result["terminal_reason"]) == ("interrupted", "interrupted")
    if moment == "text":
        assert ran.result["result"].startswith("one")
        assert ran.of("assistant")[-1]["message"]["stop_reason"] == "interrupted"
        assert ran.of("stream_event")[-1]["event"]["type"] == "message_stop"
    else:
        assert "interrupted" in str(texts_of(ran, "user"))


# Input as a stream.


def talk(place: Place, *replies: Any, flags: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Running:
    return place.start("-m", place.script(*replies), *BOTH, *flags, stdin=True, env=env)


def test_prompts_are_answered_one_after_another_however_they_come(place: Place) -> None:
    with talk(place, *({"text": f"{n}"} for n in range(6)), flags=("-p", "on the command line")) as running:
        running.wait_for(lambda line: line.get("result") == "0")
        running.send({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "a block"}]}})
        running.wait_for(lambda line: line.get("result") == "1")
        running.control("steer", message={"role": "user", "content": "without a turn it is a prompt"})
        running.wait_for(lambda line: line.get("result") == "2")
        for n in range(3):
            running.say(f"at once {n}")
        ran = running.ended()
    assert ran.code == 0
    assert is_stream(ran)
    assert [line["result"] for line in ran.of("result")] == ["0", "1", "2", "3", "4", "5"]
    assert len({line["uuid"] for line in ran.of("result")}) == 6


def test_nothing_on_stdin_is_not_an_error(place: Place) -> None:
    with talk(place) as running:
        ran = running.ended()
    assert ran.code == 0
    assert [line["type"] for line in ran.lines] == ["system"]


def test_a_closed_stdin_is_an_empty_one(place: Place) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "agentcli", "-m", place.script(), *BOTH]
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupt_ends_the_turn_and_the_next_prompt_is_answered(place: Place, waits: bool) -> None:
    with talk(place, SLOW, {"text": "Next."}, flags=("--include-partial-messages",)) as running:
        running.say("count")
        if waits:
            running.say("next")
        running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
        running.control("interrupt")
        if not waits:
            running.wait_for_type("result")
            running.say("next")
        ran = running.ended()
    assert ran.code == 0
    assert [line["subtype"] for line in ran.of("result")] == ["interrupted", "success"]
    assert is_stream(ran)


@pytest.mark.full
def test_an_interrupt_right_behind_a_prompt_ends_its_turn(place: Place) -> None:
    late = {"text": "late", "delay_ms": 1_500}
    with talk(place, late, late) as running:
        prompts = [{"type": "user", "message": {"role": "user", "content": text}} for text in ("count", "next")]
        running.send(prompts[0], {"type": "control", "subtype": "interrupt"}, prompts[1])
        ran = running.ended()
    assert [line["subtype"] for line in ran.of("result")] == ["interrupted", "success"]


def test_prompts_that_wait_survive_a_kill_and_leave_a_single_question_alone(place: Place) -> None:
    def stored(id: str) -> list[dict[str, Any]]:
        """The bodies of the session's entries."""
        shown = place.run("sessions", "show", id, "--json")
        return [entry["body"] for entry in json.loads(shown.out)["entries"]] if shown.code == 0 else []

    def waiting(id: str) -> list[str]:
        queues = [body for body in stored(id) if body["kind"] == "queue"]
        return [message[0]["text"] for message in queues[-1].get("follow_ups", ())] if queues else []

    with talk(place, VERY_SLOW) as running:
        id = running.wait_for_type("system", "init")["session_id"]
        running.say("first")
        running.say("second")
        wait_until(lambda: waiting(id) == ["second"], "the prompt to be stored")
        running.signal(signal.SIGKILL)
        running.left()
    once = place.run("-m", place.script({"text": "Just this."}), "-c", "-p", "third")
    assert (once.code, once.out) == (0, "Just this.\n")
    assert waiting(id) == ["second"]
    with talk(place, {"text": "Four."}, {"text": "Two."}, flags=("-c",)) as running:
        running.say("fourth")
        ran = running.ended()
    assert [line["result"] for line in ran.of("result")] == ["Four.", "Two."]
    assert waiting(id) == []
    said = [body["content"][0]["text"] for body in stored(id) if body["kind"] == "user" and not body.get("is_reminder")]
    assert said == ["first", "third", "fourth", "second"]


def test_a_call_is_approved_or_denied_from_outside(place: Place) -> None:
    with talk(place, *ASKS, *ASKS, env={"AGENTCLI_PERMISSIONS_TRY": "false"}) as running:
        running.say("go")
        asked = running.wait_for_type("system", "approval_requested")
        assert (asked["tool_name"], asked["tool_input"]) == ("bash", {"command": "touch made"})
        assert (asked["title"], asked["preview"]) == ("Run touch made", "touch made")
        assert not (place.folder / "made").exists()
        running.control("deny", id=asked["id"], comment="not like this")
        running.wait_for_type("result")
        running.say("again")
        asked = running.wait_for(lambda line: line.get("id") == "call_3_1")
        running.control("approve", id=asked["id"])
        ran = running.ended()
    first, second = ran.of("result")
    assert first["result"] == "So: permission_denied: The user declined this call. They said: not like this"
    assert [denied["tool_use_id"] for denied in first["permission_denials"]] == ["call_1_1"]
    assert (second["subtype"], second["permission_denials"]) == ("success", [])
    assert (place.folder / "made").exists()


def test_each_result_names_its_own_denials_however_fast_the_next_prompt_begins(place: Place) -> None:
    denied = {"tool_calls": [call("bash", command="touch made")]}
    fails = {"error": {"kind": "bad_request", "message": "No."}}
    with talk(place, denied, {"text": "One."}, {"text": "Two."}, denied, fails, flags=("--fail-on-denial",)) as running:
        for text in ("first", "second", "third"):
            running.say(text)
        ran = running.ended()
    calls = [[one["tool_use_id"] for one in line["permission_denials"]] for line in ran.of("result")]
    assert calls == [["call_1_1"], [], ["call_4_1"]]
    assert [line["subtype"] for line in ran.of("result")] == ["error_permission", "success", "error_during_execution"]


def test_an_approval_for_the_session_is_asked_once(place: Place) -> None:
    with talk(place, *ASKS, *ASKS) as running:
        running.say("go")
        asked = running.wait_for_type("system", "approval_requested")
        running.control("approve", id=asked["id"], scope="session")
        running.say("again")
        ran = running.ended()
    assert len(ran.of("system", "approval_requested")) == 1
    assert len(ran.of("result")) == 2


def test_single_hunks_are_made_and_a_wrong_answer_is_reported(place: Place) -> None:
    (place.folder / "n.txt").write_text("".join(f"line {n};\n" for n in range(30)))
    edits = [{"old_string": f"line {n};", "new_string": f"changed {n};"} for n in (2, 25)]
    edit = {"tool_calls": [{"name": "file_edit", "input": {"path": "n.txt", "edits": edits}}]}
    read = {"tool_calls": [{"name": "file_read", "input": {"path": "n.txt"}}]}
    with talk(place, read, edit, {"text": "So: {{last_result}}"}) as running:
        running.say("go")
        asked = running.wait_for_type("system", "approval_requested")
        assert len(asked["hunks"]) == 2
        assert "file_edit(./n.txt)" in asked["rules"]
        running.control("approve", id=asked["id"], scope="for ever")
        running.control("approve", id=asked["id"], hunks=[1, 2])
        running.control("approve", id=asked["id"], hunks=[1], comment="only the second")
        ran = running.ended()
    assert len(ran.of("system", "input_error")) == 2
    assert "rejected these hunks" in ran.of("result")[0]["result"]
    lines = (place.folder / "n.txt").read_text().splitlines()
    assert (lines[2], lines[25]) == ("line 2;", "changed 25;")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scope": "try"}, "has no dry run"),
        ({"hunks": [5]}, "no hunk 5"),
        ({"hunks": [0]}, "no hunk 0"),
        ({"hunks": [-1], "scope": "session"}, "no hunk -1"),
        ({"rule": "file_write(", "scope": "session"}, "is not a permission rule"),
        ({"rule": " "}, "is not a permission rule"),
        ({"rule": "file_wriet", "scope": "always"}, "unknown tool 'file_wriet'"),
        ({"rule": "mcp__a__b", "scope": "session"}, "no MCP server offers"),
    ],
)
def test_an_answer_that_means_nothing_is_refused_and_the_question_stays_open(
    place: Place, wrong: dict[str, Any], says: str
) -> None:
    write = {"tool_calls": [{"name": "bash", "input": {"command": "touch made", "background": True}}]}
    with talk(place, write, {"text": "So: {{last_result}}"}) as running:
        running.say("go")
        asked = running.wait_for_type("system", "approval_requested")
        assert (asked["can_try"], asked["hunks"]) == (False, [])
        running.send({"type": "control", "subtype": "approve", "id": asked["id"], **wrong})
        assert says in running.wait_for_type("system", "input_error")["error"]
        assert running.wait_for_type("system", "control")["ok"] is False
        running.control("deny", id=asked["id"])
        ran = running.ended()
    assert [line["ok"] for line in ran.of("system", "control")] == [False, True]
    assert "declined" in ran.result["result"]
    assert not (place.folder / "made").exists()


def test_when_input_has_ended_nobody_is_asked(place: Place) -> None:
    with talk(place, *ASKS, *ASKS) as running:
        running.say("go")
        running.wait_for_type("system", "approval_requested")
        running.say("again")
        ran = running.ended()
    assert ran.code == 0
    assert is_stream(ran)
    first, second = ran.of("result")
    assert "no one can approve it" in first["result"]
    assert "no one can approve them" in second["result"]
    assert "declined" not in first["result"]
    assert not (place.folder / "made").exists()


def test_a_mode_set_from_outside_settles_the_question_that_it_would_not_ask(place: Place) -> None:
    with talk(place, *ASKS, *ASKS) as running:
        running.say("go")
        asked = running.wait_for_type("system", "approval_requested")
        running.control("set_permission_mode", mode="bypassPermissions")
        assert running.wait_for_type("system", "approval_settled")["id"] == asked["id"]
        running.say("again")
        ran = running.ended()
    assert len(ran.of("system", "approval_requested")) == 1
    assert (place.folder / "made").exists()


def test_the_model_is_set_from_outside_and_the_switch_is_reported(place: Place) -> None:
    other = place.script({"text": "From the other."})
    with talk(place, {"text": "From the first."}) as running:
        running.say("one")
        running.wait_for_type("result")
        running.control("set_model", model=other)
        running.say("two")
        ran = running.ended()
    assert [line["result"] for line in ran.of("result")] == ["From the first.", "From the other."]
    (switched,) = ran.of("system", "provider_switch")
    assert (switched["to"], switched["reason"]) == (other, "chosen")
    assert switched["from"] == ran.lines[0]["model"]


def test_a_model_that_does_not_exist_fails_the_prompt_and_not_the_program(place: Place) -> None:
    with talk(place, {"text": "Back."}) as running:
        running.control("set_model", model="nonsense")
        running.say("one")
        failed = running.wait_for_type("result")
        running.control("set_model", model=running.wait_for_type("system", "init")["model"])
        running.say("two")
        ran = running.ended()
    assert "PROVIDER/MODEL" in failed["result"]
    assert ran.result["result"] == "Back."


def test_a_message_may_reach_the_model_early(place: Place) -> None:
    begin = {"tool_calls": [call("bash", command="touch begun; sleep 0.2"), call("bash", command="touch made")]}
    with talk(place, begin, {"text": "Done."}, flags=("--permission-mode", "bypassPermissions")) as running:
        running.say("go")
        wait_until((place.folder / "begun").exists, "the command")
        running.control("steer", message={"role": "user", "content": "stop there"})
        ran = running.ended()
    (steered,) = ran.of("system", "steered")
    assert steered["skipped"] == ["call_1_2"]
    assert not (place.folder / "made").exists()
    assert len(ran.of("result")) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_while_input_is_still_open(place: Place, number: signal.Signals, code: int) -> None:
    with talk(place, {"text": "One."}) as running:
        running.say("first")
        running.wait_for_type("result")
        running.signal(number)
        ran = running.left()
    assert ran.code == code
    assert is_stream(ran)
    assert len(ran.of("result")) == 1


def test_a_signal_ends_the_turn_and_what_waits_while_input_is_still_open(place: Place) -> None:
    with talk(place, SLOW, {"text": "never"}, flags=("--include-partial-messages",)) as running:
        running.say("first")
        running.say("second")
        running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
        running.signal(signal.SIGTERM)
        ran = running.left()
    assert ran.code == 143
    assert is_stream(ran)
    assert [line["subtype"] for line in ran.of("result")] == ["interrupted"]
