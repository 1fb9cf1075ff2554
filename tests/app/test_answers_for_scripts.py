"""Answers that scripts can rely on: they fit a schema, or the exit code says that they do not; a run always ends."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.app.running import Place, Ran, call
from tests.conformance.replies import anthropic_reply, chat_reply
from tests.conformance.servers import anthropic_server, chat_server, json_reply

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def asked(place: Place, *replies: dict[str, Any], flags: tuple[str, ...] = ("--output-format", "json")) -> Ran:
    return place.run("-p", "2 + 2", "-m", place.script(*replies), "--json-schema", json.dumps(SCHEMA), *flags)


def test_an_answer_that_fits_is_given_as_a_value(place: Place) -> None:
    ran = asked(place, {"text": '{"n": 4}'})
    assert (ran.code, ran.result["subtype"], ran.result["structured_output"]) == (0, "success", {"n": 4})
    shown = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "must match this JSON Schema" in shown


def test_one_that_does_not_fit_is_asked_for_again_with_what_is_wrong(place: Place) -> None:
    ran = asked(place, {"text": "Four."}, {"text": '```json\n{"n": "four"}\n```'}, {"text": '```json\n{"n": 4}\n```'})
    assert (ran.code, ran.result["structured_output"], ran.result["num_turns"]) == (0, {"n": 4}, 3)
    shown = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "$.n: 'four' is not of type 'integer'" in shown
    assert "it is not valid JSON" in shown


def test_calls_come_before_the_answer_and_are_not_held_to_the_schema(place: Place) -> None:
    ran = asked(place, {"text": "Let me see.", "tool_calls": [call("think", thought="hm")]}, {"text": '{"n": 4}'})
    assert ran.result["structured_output"] == {"n": 4}
    assert ran.result["num_turns"] == 2


def test_a_conversation_begun_in_the_stream_is_held_to_the_schema_too(place: Place) -> None:
    script = place.script({"text": '{"n": 1}'}, {"text": "Two."}, {"text": '{"n": 2}'})
    flags = ("--input-format", "stream-json", "--output-format", "stream-json", "--json-schema", json.dumps(SCHEMA))
    with place.start("-m", script, *flags, stdin=True) as running:
        running.say("1 + 0")
        running.wait_for_type("result")
        running.control("command", text="/clear")
        running.say("1 + 1")
        ran = running.ended()
    assert [result["structured_output"] for result in ran.of("result")] == [{"n": 1}, {"n": 2}]


def test_after_two_more_dry_runs_it_is_an_error_of_its_own(place: Place) -> None:
    ran = asked(place, *[{"text": '{"m": 4}'}] * 4)
    assert ran.code == 55
    assert (ran.result["subtype"], ran.result["is_error"]) == ("error_schema", True)
    assert (ran.result["structured_output"], ran.result["num_turns"]) == (None, 3)
    text = asked(place, *[{"text": "no"}] * 4, flags=())
    assert text.code == 55
    assert "does not match the schema" in text.err
    stream = asked(place, *[{"text": "no"}] * 4, flags=("--output-format", "stream-json"))
    assert stream.code == 55


def test_a_pipe_gets_the_value_and_nothing_around_it(place: Place) -> None:
    assert asked(place, {"text": 'Here:\n```json\n{"n": 4}\n```'}, flags=()).out == '{"n":4}\n'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"type": "objct"}', "--json-schema is not valid"),
        ("[1]", "Could not read"),
        ('{"type"', "is not a JSON object"),
        ('{"$ref": "#/$defs/absent"}', "missing or circular"),
        ('{"$ref": "#"}', "missing or circular"),
        ("absent.json", "Could not read absent.json"),
    ],
)
def test_a_schema_that_is_none_is_reported_before_any_request(place: Place, given: str, said: str) -> None:
    ran = place.run("-p", "go", "-m", place.script({"text": "x"}), "--json-schema", given)
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_brackets_without_end_are_not_a_answer(place: Place) -> None:
    ran = asked(place, {"text": "[" * 3_000}, {"text": '{"n": 4}'})
    assert (ran.code, ran.result["structured_output"]) == (0, {"n": 4})


def test_a_schema_can_be_a_file(place: Place) -> None:
    (place.folder / "schema.json").write_text(json.dumps(SCHEMA))
    ran = place.run("-p", "go", "-m", place.script({"text": '{"n": 4}'}), "--json-schema", "schema.json")
    assert (ran.code, ran.out) == (0, '{"n":4}\n')


@pytest.mark.parametrize("format", ["text", "json", "stream-json"])
def test_a_run_in_which_nothing_happens_ends(place: Place, format: str) -> None:
    since = time.monotonic()
    script = place.script({"text": "late", "delay_ms": 60_000})
    ran = place.run("-p", "go", "-m", script, "--output-format", format, env={"AGENTCLI_LIMITS_IDLE_S": "0.5"})
    assert time.monotonic() - since < 20
    assert ran.code == 1
    if format == "text":
        assert "nothing happened for 0.5 s" in ran.err
    else:
        assert ran.result["subtype"] == "error_during_execution"
        assert "limits.idle_s" in ran.result["result"]
        assert len([line for line in ran.lines if line["type"] == "result"]) == 1


def test_a_conversation_begun_in_the_stream_is_watched_too(place: Place) -> None:
    script = place.script({"text": "ok"}, {"text": "late", "delay_ms": 60_000})
    flags = ("--input-format", "stream-json", "--output-format", "stream-json")
    with place.start("-m", script, *flags, env={"AGENTCLI_LIMITS_IDLE_S": "0.5"}, stdin=True) as running:
        running.say("one")
        running.wait_for_type("result")
        running.control("command", text="/clear")
        running.wait_for_type("system", "command")
        running.say("two")
        ran = running.ended()
    assert ["limits.idle_s" in result["result"] for result in ran.of("result")] == [False, True]
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_a_run_in_which_something_happens_continues(place: Place) -> None:
    words = {"text": "one two three four five six", "delay_ms": 150, "chunk": 4}
    ran = place.run("-p", "go", "-m", place.script(words), env={"AGENTCLI_LIMITS_IDLE_S": "0.6"})
    assert (ran.code, ran.out) == (0, "one two three four five six\n")


@pytest.mark.slow
def test_the_time_in_which_a_person_is_asked_does_not_count(place: Place) -> None:
    script = place.script({"tool_calls": [call("ask_user", question="Which?")]}, {"text": "so: {{last_result}}"})
    flags = ("--input-format", "stream-json", "--output-format", "stream-json")
    with place.start("-m", script, *flags, env={"AGENTCLI_LIMITS_IDLE_S": "0.3"}, stdin=True) as running:
        running.say("go")
        question = running.wait_for_type("system", "question")
        time.sleep(1)
        running.control("answer", id=question["id"], text="this one")
        assert running.wait_for_type("result")["subtype"] == "success"
        running.ended()


FORMAT = {"type": "json_schema", "schema": SCHEMA}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": False}


def test_providers_that_can_are_reported_the_schema(place: Place) -> None:
    fits = '{"n": 4}'
    with anthropic_server([anthropic_reply(fits)]) as claude, chat_server([chat_reply(fits)]) as chat:
        keys = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": claude.url, "OPENAI_API_KEY": "k"}
        for model in ("anthropic/claude-sonnet-5-5", "openai/gpt-6.1-sol"):
            flags = ("-m", model, "--json-schema", json.dumps(SCHEMA), "--effort", "low")
            ran = place.run("-p", "2 + 2", *flags, env=keys | {"OPENAI_BASE_URL": chat.url})
            assert (ran.code, ran.out) == (0, '{"n":4}\n'), ran.err
        assert claude.requests[0].json["output_config"] == {"effort": "low", "format": FORMAT}
        assert chat.requests[0].json["response_format"] == {"type": "json_schema", "json_schema": NAMED}


def test_a_schema_that_a_provider_refuses_is_checked_here(place: Place) -> None:
    said = "response_format: Invalid schema for response_format 'answer': 'additionalProperties' is required."
    refused = json_reply({"error": {"message": said, "type": "invalid_request_error"}}, 400)
    with chat_server([refused, chat_reply("four"), chat_reply('{"n": 4}')]) as chat:
        keys = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": chat.url}
        ran = place.run("-p", "2 + 2", "-m", "openai/gpt-6.1-sol", "--json-schema", json.dumps(SCHEMA), env=keys)
        assert (ran.code, ran.out) == (0, '{"n":4}\n'), ran.err
        assert ["response_format" in request.json for request in chat.requests] == [True, False, False]


def test_a_tool_without_properties_is_sent_as_openai_takes_it(place: Place) -> None:
    tool = {"name": "mine", "description": "Mine.", "input_schema": {"type": "object"}}
    with chat_server([chat_reply("ok")]) as chat:
        keys = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": chat.url}
        flags = ("--input-format", "stream-json", "--output-format", "stream-json")
        with place.start("-m", "openai/gpt-6.1-sol", *flags, env=keys, stdin=True) as running:
            running.control("client_tools", tools=[tool])
            running.say("go")
            running.wait_for_type("result")
            running.ended()
        sent = {one["function"]["name"]: one["function"]["parameters"] for one in chat.requests[0].json["tools"]}
        assert sent["mine"] == {"type": "object", "properties": {}}
