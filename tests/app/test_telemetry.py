"""Traces and metrics, as a collector on loopback gets them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from agentcli import Agent
from agentcli.infra.telemetry.recorder import sampler
from agentcli.settings.structs import Sampling
from tests.app.collector import Collector, Span, collector
from tests.app.running import Place, Ran, call
from tests.app.terminal import Open
from tests.app.test_start_path import loaded
from tests.conformance.replies import anthropic_reply
from tests.conformance.servers import anthropic_server

INTERNAL, CLIENT = 1, 3
KEY = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cF3hJ6"
BYPASS = ("--permission-mode", "bypassPermissions")


pytestmark = pytest.mark.slow  # each waits for a collector


@pytest.fixture
def came() -> Iterator[Collector]:
    with collector() as came:
        yield came


def settings(url: str, **more: Any) -> dict[str, str]:
    """Variables that have all traces and metrics sent there."""
    given = {"traces": True, "metrics": True, "sampling": "always", "endpoint": url, **more}
    return {f"AGENTCLI_OBSERVABILITY_{name}".upper(): str(value) for name, value in given.items()}


def run(
    place: Place, came: Collector, *replies: dict[str, Any], flags: tuple[str, ...] = (), code: int = 0, **more: Any
) -> Ran:
    ran = place.run("-m", place.script(*replies), "-p", "go", *flags, env=settings(came.url, **more))
    assert ran.code == code, ran
    return ran


# Traces


def test_a_turn_is_a_span_with_one_for_each_request_and_each_call(place: Place, came: Collector) -> None:
    (place.folder / "a.py").write_text("x = 1\n")
    usage = {"input_tokens": 100, "output_tokens": 5, "cache_read_input_tokens": 20, "reasoning_tokens": 2}
    calls = [call("file_read", path="a.py"), call("file_read", path="a.py"), call("file_list")]
    ran = run(place, came, {"tool_calls": calls, "usage": usage}, {"text": "Hi.", "delay_ms": 60})
    assert ran.out == "Hi.\n"
    turn = came.span("invoke_agent agentcli")
    assert (turn.kind, turn.parent_id, turn.is_error) == (INTERNAL, "", False)
    about = {"gen_ai.agent.id": "main", "gen_ai.agent.name": "agentcli", "agentcli.rounds": 2}
    assert about.items() <= turn.attributes.items()
    assert turn.attributes["gen_ai.agent.version"]
    requests = [span for span in came.spans if span.name == "chat script-1.jsonl"]
    first, second = sorted(requests, key=lambda span: span.start)
    assert {span.kind for span in requests} == {CLIENT}
    usage = {"input_tokens": 120, "cache_read.input_tokens": 20, "output_tokens": 5, "reasoning.output_tokens": 2}
    about = {"provider.name": "scripted", "response.finish_reasons": ["tool_use"]}
    about |= {f"usage.{name}": value for name, value in usage.items()}
    assert {f"gen_ai.{name}": value for name, value in about.items()}.items() <= first.attributes.items()
    assert 0 < second.attributes["gen_ai.response.time_to_first_chunk"] <= second.end - second.start
    tools = [span for span in came.spans if span.name.startswith("execute_tool")]
    assert sorted(span.name for span in tools) == ["execute_tool file_list", *["execute_tool file_read"] * 2]
    assert {span.attributes["gen_ai.tool.call.id"] for span in tools} == {"call_1_1", "call_1_2", "call_1_3"}
    assert {span.attributes["gen_ai.tool.type"] for span in tools} == {"function"}
    for span in (*requests, *tools):
        assert came.parent(span) == turn.name
        assert (span.trace, turn.start <= span.start <= span.end <= turn.end) == (turn.trace, True)
    sessions = {span.attributes["gen_ai.conversation.id"] for span in came.spans}
    assert place.run("sessions", "show", *sessions).code == 0


def test_names_are_those_of_the_conventions(place: Place, came: Collector) -> None:
    run(place, came, {"tool_calls": [call("file_list")]}, {"text": "Hi."}, content=True)
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in came.spans for name in span.attributes}
    assert {name for name in used if name.startswith("gen_ai.")} <= known
    assert {name.partition(".")[0] for name in used} <= {"gen_ai", "agentcli", "server", "error"}
    metrics = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")}
    assert {name for name in came.points if name.startswith("gen_ai.")} <= metrics


def test_a_request_that_is_retried_is_one_span(place: Place, came: Collector) -> None:
    run(place, came, {"error": {"kind": "overloaded"}}, {"error": {"kind": "server"}}, {"text": "Hi."})
    chat = came.span("chat script-1.jsonl")
    assert (chat.is_error, chat.attributes["agentcli.retries"]) == (False, 2)


def test_a_turn_that_fails_is_an_error(place: Place, came: Collector) -> None:
    run(place, came, {"error": {"kind": "auth"}}, code=1)
    for name in ("chat script-1.jsonl", "invoke_agent agentcli"):
        span = came.span(name)
        assert (span.is_error, span.attributes["error.type"], span.told) == (True, "AuthError", "")
    assert ("AuthError",) in values(came.points["gen_ai.client.operation.duration"], "error.type")
    assert values(came.points["agentcli.turns"], "error.type") == {("AuthError",): 1}


def test_a_model_that_takes_over_leaves_the_failure_of_the_other(place: Place, came: Collector) -> None:
    second = place.script({"text": "Hi."})
    env = settings(came.url) | {"AGENTCLI_RETRY_MAX": "0", "AGENTCLI_PROVIDER_FALLBACK_MODEL": second}
    model = place.script({"tool_calls": [call("file_list")]}, {"error": {"kind": "overloaded"}})
    assert place.run("-m", model, "-p", "go", env=env).out == "Hi.\n"
    assert [span.is_error for span in came.spans if span.name == "chat script-2.jsonl"] == [False, True]
    assert not came.span("chat script-1.jsonl").is_error
    assert came.span("invoke_agent agentcli").attributes["gen_ai.request.model"] == "script-1.jsonl"


@pytest.mark.parametrize("in_background", [False, True])
def test_a_subagent_is_nested_under_the_call_that_made_it(place: Place, came: Collector, in_background: bool) -> None:
    child = place.script({"tool_calls": [call("file_list")]}, {"text": "Seen.", "delay_ms": 100})
    asked = call("create_subagent", task="look", agent="explore", model=child, background=in_background)
    run(place, came, {"tool_calls": [asked]}, {"text": "Waiting."}, {"text": "Done."})
    inner = came.span("invoke_agent explore")
    assert came.parent(inner) == "execute_tool create_subagent"
    assert inner.attributes["gen_ai.agent.id"] == "explore-1"
    assert came.parent(came.span("execute_tool file_list")) == inner.name
    chats = [span for span in came.spans if span.name == "chat script-1.jsonl"]
    assert [came.parent(span) for span in chats] == [inner.name] * 2
    assert len({span.trace for span in came.spans}) == 1


def test_waiting_for_the_person_is_distinguished(place: Place, came: Collector) -> None:
    model = place.script({"tool_calls": [call("file_write", path="new", content="x")]}, {"text": "Done."})
    flags = ("--input-format", "stream-json", "--output-format", "stream-json")
    with place.start("-m", model, *flags, env=settings(came.url), stdin=True) as running:
        running.say("go")
        id = running.wait_for_type("system", "approval_requested")["id"]
        time.sleep(0.3)
        running.control("approve", id=id)
        running.wait_for_type("result")
        assert running.ended().code == 0
    span = came.span("execute_tool file_write")
    assert 0 < span.attributes["agentcli.approval.wait_s"] <= span.end - span.start


def test_a_compaction_is_reported_in_its_turn(place: Place, came: Collector) -> None:
    model = place.script({"error": {"kind": "context_overflow"}}, {"text": "Hi."})
    for number in range(3):
        flags = ("-c",) if number else ()
        assert place.run("-m", place.script({"text": "So."}), "-p", f"say {number} " * 4_000, *flags).code == 0
    assert place.run("-c", "-m", model, "-p", "go", env=settings(came.url)).code == 0
    (told,) = came.span("invoke_agent agentcli").events
    assert told[0] == "agentcli.compaction"
    assert told[1]["trigger"] == "overflow"
    refused, answered = sorted((s for s in came.spans if s.name.startswith("chat")), key=lambda span: span.start)
    assert (refused.attributes["error.type"], answered.is_error) == ("ContextOverflow", False)


def test_a_parent_in_the_environment_is_the_parent(place: Place, came: Collector) -> None:
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    env = settings(came.url, sampling="1%") | {"TRACEPARENT": f"00-{trace}-{span}-01"}
    model = place.script({"tool_calls": [call("bash", command='echo "[$TRACEPARENT]"')]}, {"text": "{{last_result}}"})
    ran = place.run("-m", model, "-p", "go", *BYPASS, env=env)
    assert "[]" in ran.out  # commands are not told
    turn = came.span("invoke_agent agentcli")
    assert (turn.trace, turn.parent_id) == (trace, span)
    env["TRACEPARENT"] = f"00-{trace}-{span}-00"  # its caller does not trace
    place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
    assert len([span for span in came.spans if span.name == "invoke_agent agentcli"]) == 1


def test_where_a_provider_is_reached_is_reported(place: Place, came: Collector) -> None:
    with anthropic_server([anthropic_reply("Hi.")]) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "key", **settings(came.url)}
        assert place.run("-m", "anthropic/claude-sonnet-5-5", "-p", "go", env=env).out == "Hi.\n"
    chat = came.span("chat claude-sonnet-5-5")
    assert chat.attributes["server.address"] == "127.0.0.1"
    assert chat.attributes["server.port"] == int(server.url.rpartition(":")[2])
    assert chat.attributes["gen_ai.response.model"] == "claude-sonnet-5-5"
    assert chat.attributes["agentcli.cost"] > 0


# Sampling


@pytest.mark.parametrize(
    ("share", "least", "most"),
    [("never", 0, 0), ("1%", 1, 60), ("10%", 120, 290), ("50%", 880, 1_120), ("always", 2_000, 2_000)],
)
def test_a_share_of_traces_is_kept(share: Sampling, least: int, most: int) -> None:
    tracer = TracerProvider(sampler(share), shutdown_on_exit=False).get_tracer("test")
    kept = sum(tracer.start_span("turn").is_recording() for _ in range(2_000))
    assert least <= kept <= most


# Metrics


def values(points: list[Any], *names: str) -> dict[tuple[Any, ...], Any]:
    """The sum of each point by some of its attributes."""
    found = {}
    for point in points:
        attributes = {one.key: one.value.string_value for one in point.attributes}
        is_sum = hasattr(point, "as_int")
        value = (point.as_int or point.as_double) if is_sum else round(point.sum, 6)
        found[tuple(attributes.get(name, "") for name in names)] = value
    return found


def test_metrics_count_tokens_calls_turns_and_money(place: Place, came: Collector) -> None:
    usage = {"input_tokens": 100, "output_tokens": 5, "cache_read_input_tokens": 20, "cost_usd": 0.25}
    replies = {"tool_calls": [call("file_list"), call("nope")], "usage": usage}, {"text": "Hi.", "usage": usage}
    run(place, came, *replies)
    points = came.points
    tokens = values(points["gen_ai.client.token.usage"], "gen_ai.token.type", "gen_ai.request.model")
    assert tokens == {("input", "script-1.jsonl"): 240, ("output", "script-1.jsonl"): 10}
    (duration,) = points["gen_ai.client.operation.duration"]
    assert duration.count == 2
    assert list(duration.explicit_bounds)[:3] == [0.01, 0.02, 0.04]
    assert duration.explicit_bounds[-1] == 81.92
    assert list(points["gen_ai.client.token.usage"][0].explicit_bounds)[-1] == 67_108_864
    assert points["gen_ai.client.operation.time_to_first_chunk"][0].count == 2
    assert values(points["agentcli.tool.calls"], "gen_ai.tool.name", "error.type") == {
        ("file_list", ""): 1, ("nope", "not_found"): 1,
    }  # fmt: skip
    failed = came.span("execute_tool nope")
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "not_found")
    assert not came.span("invoke_agent agentcli").is_error
    assert values(points["agentcli.turns"], "agentcli.turn.reason") == {("end_turn",): 1}
    assert values(points["agentcli.cost"], "gen_ai.provider.name") == {("scripted",): 0.5}


# Secrets and content


def test_prompts_answers_and_results_leave_only_when_asked(place: Place, came: Collector) -> None:
    (place.folder / "mine.txt").write_text("a treasure\n")
    calls = {"text": "I look", "tool_calls": [call("file_read", path="mine.txt"), call("file_read", path="gone.txt")]}
    run(place, came, calls, {"text": "It is buried."})
    for word in (b"treasure", b"mine.txt", b"gone.txt", b"buried", b"I look", str(place.folder).encode()):
        assert word not in came.raw
    run(place, came, calls, {"text": "It is buried." + " word" * 20_000}, content=True)
    turn = [span for span in came.spans if span.name == "invoke_agent agentcli"][-1]
    asked, answered = (turn.attributes[f"gen_ai.{side}.messages"] for side in ("input", "output"))
    assert json.loads(asked) == [{"role": "user", "parts": [{"type": "text", "content": "go"}]}]
    assert answered.startswith('[{"role":"assistant","parts":[{"type":"text","content":"It is buried. word')
    assert len(answered) == 32_768
    tool = next(span for span in came.spans if "a treasure" in str(span.attributes.get("gen_ai.tool.call.result")))
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"path": "mine.txt"}


PEM = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" + "bKcwggSjAgEAAoIB"] * 6)
PEM += "\n-----END PRIVATE KEY-----"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("secret", [KEY, "own-key-0123456789", PEM, "hunter2xyz"])
def test_no_secret_leaves_even_with_content(place: Place, came: Collector, secret: str) -> None:
    (place.folder / ".env").write_text(f"PASSWORD={secret}\n" if "\n" not in secret else "")
    said = f"password={secret}"
    lines = (secret.splitlines() or [secret])[1:-1] or [secret]
    calls = [
        call("bash", command=f"echo '{said}'"), call("file_read", path=said), call(KEY),
        call("bash", command=f"echo '{said}' >&2; exit 3"),
    ]  # fmt: skip
    env = settings(came.url, content=True, tags=f"a={KEY}") | {"OWN_API_KEY": secret}
    replies = (
        {"text": said, "tool_calls": calls, "usage": {"input_tokens": 5}},
        {"error": {"kind": "overloaded", "message": said}},
        {"error": {"kind": "bad_request", "message": said}},
    )
    ran = place.run("-m", place.script(*replies), "-p", f"my {said}", *BYPASS, env=env)
    assert ran.code == 1
    assert "[masked" in str([span.attributes for span in came.spans])
    assert {"/v1/traces", "/v1/metrics"} == set(came.paths)
    for line in (*lines, KEY):
        assert line.encode() not in came.raw


def test_headers_are_sent_and_seen_nowhere(place: Place, came: Collector) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_text('[observability.headers]\nx-api-key = "k-0123456789"\n')
    env = settings(came.url, log_level="debug", content=True)
    env |= {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20otlp-token-77"}
    model = place.script(
        {"tool_calls": [call("bash", command="env; echo k-0123456789 otlp-token-77")]}, {"text": "{{last_result}}"}
    )
    ran = place.run("-m", model, "-p", "go", *BYPASS, env=env)
    assert {(sent["x-api-key"], sent["authorization"]) for sent in came.headers} == {
        ("k-0123456789", "Bearer otlp-token-77")
    }
    shown = place.run("config", "show", env=env).out + place.run("config", "show", "--json", env=env).out
    written = (place.home / "state/logs/agentcli.log").read_text()
    for secret in ("k-0123456789", "otlp-token-77"):
        assert secret not in ran.out + ran.err + shown + written + came.raw.decode(errors="replace")
    assert 'x-api-key = "[masked]"' in shown


# What is sent, and how


def test_the_resource_says_whose_it_is(place: Place, came: Collector) -> None:
    run(place, came, {"text": "Hi."}, sampling="never")
    assert came.spans == []
    assert came.points  # metrics count everything
    run(place, came, {"text": "Hi."}, service="helper", environment="staging", tags="team=core,site=a")
    found = came.spans[0].resource
    assert (found["service.name"], found["deployment.environment.name"]) == ("helper", "staging")
    assert (found["team"], found["site"]) == ("core", "a")


def test_the_standard_variables_count_where_nothing_is_set(place: Place, came: Collector) -> None:
    env = {name: value for name, value in settings(came.url).items() if not name.endswith("ENDPOINT")}
    env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": came.url, "OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "a=b"}
    place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
    assert (came.spans[0].resource["service.name"], came.spans[0].resource["a"]) == ("mine", "b")
    del env["OTEL_EXPORTER_OTLP_ENDPOINT"], env["OTEL_SERVICE_NAME"]
    with collector() as other:
        env |= {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{other.url}/v1/traces"}
        env |= {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{other.url}/v1/metrics"}
        place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
        assert set(other.paths) == {"/v1/traces", "/v1/metrics"}
        assert other.spans[0].resource["service.name"] == "agentcli"


def test_the_standard_variables_alone_turn_it_on_and_off(place: Place, came: Collector) -> None:
    """As people set them for Claude Code."""
    asked = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": came.url}
    asked |= {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TIMEOUT": "4000"}

    def run(**more: str) -> Ran:
        ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", env={**asked, **more})
        assert ran.out == "Hi.\n"
        return ran

    assert (run().err, came.paths) == ("", [])  # nobody has asked for it
    run(CLAUDE_CODE_ENABLE_TELEMETRY="1", OTEL_TRACES_EXPORTER="none")
    run(CLAUDE_CODE_ENABLE_TELEMETRY="1", OTEL_SDK_DISABLED="true")
    assert came.paths == []
    run(CLAUDE_CODE_ENABLE_TELEMETRY="1")
    assert came.paths == ["/v1/traces"]
    run(AGENTCLI_ENABLE_TELEMETRY="1", OTEL_TRACES_SAMPLER="always_off")
    assert came.paths == ["/v1/traces"]
    shown = run(AGENTCLI_ENABLE_TELEMETRY="1", OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console").err
    assert ("invoke_agent agentcli" in shown, "agentcli.turns" in shown, "go" in shown.split()) == (True, True, False)
    assert came.paths == ["/v1/traces"]


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc", "only http/protobuf is supported, not 'grpc'"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "zipkin is not supported. Use otlp, console or none"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "'soon' is not a number of ms"),
    ],
)
def test_a_variable_that_asks_for_what_is_not_supported_is_reported(
    place: Place, came: Collector, variable: str, value: str, why: str
) -> None:
    env = settings(came.url) | {variable: value}
    ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
    assert (ran.out, came.paths) == ("Hi.\n", [])
    assert "No telemetry is exported: OTEL_" in ran.err
    assert why in ran.err


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_batches_are_as_large_and_compressed_as_wanted(place: Place, came: Collector, compression: str) -> None:
    calls = [call("think", thought=str(number)) for number in range(8)]
    run(place, came, {"tool_calls": calls}, {"text": "Hi."}, batch=3, metrics=False, compression=compression)
    assert {sent.get("content-encoding", "none") for sent in came.headers} == {compression}
    sizes = [len(body.resource_spans[0].scope_spans[0].spans) for body in came.bodies]
    assert (sum(sizes), max(sizes)) == (11, 3)


# Being off


@pytest.mark.parametrize("off", [{"AGENTCLI_NO_TELEMETRY": "1"}, {"OTEL_SDK_DISABLED": "true"}])
def test_two_variables_turn_all_of_it_off(place: Place, came: Collector, off: dict[str, str]) -> None:
    ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=settings(came.url) | off)
    assert (ran.out, ran.err, came.paths) == ("Hi.\n", "", [])


def test_nothing_of_it_is_imported_unless_it_is_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    ours, heavy = loaded(
        place, place.script({"text": "Hi."}), AGENTCLI_NO_TELEMETRY="1", **settings("http://127.0.0.1:9")
    )
    assert "agentcli.infra.telemetry" not in ours
    assert not heavy
    ours, heavy = loaded(place, place.script({"text": "Hi."}), **settings("http://127.0.0.1:9"))
    assert "agentcli.infra.telemetry" in ours
    assert {"opentelemetry", "requests"} <= heavy


def test_a_project_does_not_choose_what_is_exported(place: Place, came: Collector) -> None:
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli/config.toml").write_text(
        f'[observability]\ntraces = true\nsampling = "always"\nendpoint = "{came.url}"\ncontent = true\n'
    )
    ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", "--trust")
    assert "[observability] cannot be set by a project" in ran.err
    assert came.paths == []


def test_a_missing_extra_is_reported_and_ends_nothing(place: Place, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden/opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")  # in the place of the installed one
    env = settings("http://127.0.0.1:9") | {"PYTHONPATH": str(hidden.parent)}
    ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
    assert (ran.code, ran.out) == (0, "Hi.\n")
    assert "without the extra otel: ./install.sh --extras otel" in ran.err


# A collector that is ill


def log_of(place: Place) -> list[str]:
    return (place.home / "state/logs/agentcli.log").read_text().splitlines()


def test_a_collector_that_does_not_exist_costs_nothing(place: Place) -> None:
    place.is_warm = False
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    calls = [call("think", thought=str(number)) for number in range(20)]
    began = time.monotonic()
    ran = place.run("-m", place.script({"tool_calls": calls}, {"text": "Hi."}), "-p", "go", env=settings(url, batch=2))
    assert time.monotonic() - began < 25  # of the 55 s that the time-outs of eleven batches would take
    assert (ran.code, ran.out, ran.err) == (0, "Hi.\n", "")
    (told,) = [line for line in log_of(place) if "Failed to export spans" in line]  # of eleven batches
    assert "Connection refused" in told
    with collector(status=401) as closed:
        ran = run(place, closed, {"tool_calls": calls[:1]}, {"text": "Hi."}, batch=1, metrics=False)
    assert (ran.out, ran.err) == ("Hi.\n", "")
    assert len([line for line in log_of(place) if "code: 401" in line]) == 1


def test_a_collector_that_stays_silent_is_left_at_the_time_out(place: Place) -> None:
    with collector(answers=False) as silent:
        began = time.monotonic()
        env = settings(silent.url, export_timeout=0.8, metrics_timeout=0.4, batch=1)
        ran = place.run("-m", place.script({"text": "Hi."}), "-p", "go", env=env)
        assert 0.8 <= time.monotonic() - began < 30
    assert (ran.code, ran.out, ran.err) == (0, "Hi.\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_recorded_spans_are_sent_after_a_signal(place: Place, came: Collector, number: signal.Signals) -> None:
    model = place.script({"tool_calls": [call("bash", command="echo begun; sleep 60")]})
    flags = ("--output-format", "stream-json", *BYPASS)
    with place.start("-m", model, "-p", "go", *flags, env=settings(came.url)) as running:
        running.wait_for_type("assistant")
        time.sleep(0.3)
        running.signal(number)
        assert running.left().code == 128 + number
    assert came.span("execute_tool bash").is_error
    turn = came.span("invoke_agent agentcli")
    assert turn.attributes["agentcli.turn.reason"] == "interrupted"


# The library


def test_an_agent_of_a_program_exports_too(place: Place, came: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (place.environment | settings(came.url)).items():
        monkeypatch.setenv(name, value)

    async def both() -> list[Span]:
        async with Agent(place.script({"text": "One."}, {"text": "Two."}), cwd=place.folder) as agent:
            await agent.run("go")
            await agent.run("on")
        return came.spans

    spans = asyncio.run(both())
    assert sorted(span.name for span in spans) == ["chat script-1.jsonl"] * 2 + ["invoke_agent agentcli"] * 2
    assert len({span.trace for span in spans}) == 2  # a trace is a turn
    agent = Agent(place.script({"text": "One."}, {"text": "Two."}), cwd=place.folder)
    agent.run_sync("go")
    agent.run_sync("on")
    assert len(came.spans) == 8


# Front ends with many turns


def test_a_terminal_session_sends_what_is_left_as_it_ends(came: Collector, open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "Hello."}, {"text": "Again."}], **settings(came.url))
    terminal.type("hi\r")
    terminal.see("Hello.")
    terminal.rest()  # what is said sooner belongs to the first turn
    terminal.type("more\r")
    terminal.see("Again.")
    terminal.rest()
    terminal.type("/exit\r")
    assert terminal.exit_code() == 0
    assert [span.name for span in came.spans].count("invoke_agent agentcli") == 2


def test_own_commands_are_nobodys_calls(place: Place, came: Collector) -> None:
    flags = ("--input-format", "stream-json", "--output-format", "stream-json")
    model = place.script({"tool_calls": [call("bash", command="echo mine")]}, {"text": "Hi."})
    with place.start("-m", model, *flags, *BYPASS, env=settings(came.url), stdin=True) as running:
        running.say("!echo own")
        running.say("go")
        running.wait_for_type("result")
        running.ended()
    assert [span.name for span in came.spans].count("execute_tool bash") == 1
