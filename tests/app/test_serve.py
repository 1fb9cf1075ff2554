"""`agentcli serve`, by a client that knows the contract: sessions, streams, who may do what, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import openapi_spec_validator
import pytest

from tests.app.http_client import Client, Event, Server, events_in, followed_through_kill, is_result, kinds, text_of
from tests.app.running import PATIENCE_S, Place, call
from tests.conformance.replies import chat_chunk, chat_sse
from tests.conformance.servers import Reply, chat_server

pytestmark = pytest.mark.slow  # each starts a server

LONG = "The quick brown fox jumps over the lazy dog. " * 8


def asks(one: dict[str, Any]) -> bool:
    return one.get("subtype") in ("approval_requested", "question")


@pytest.fixture
def served(place: Place) -> Iterator[Any]:
    """Starts servers on one scripted model, which a later one begins anew with other replies."""
    opened: list[Server] = []
    script = place.folder.parent / "model.jsonl"

    def serve(*replies: dict[str, Any], flags: tuple[str, ...] = (), **env: str) -> Server:
        script.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        model = ("-m", f"scripted/{script}")
        opened.append(Server(place, *model, *flags, env=env))
        return opened[-1]

    yield serve
    for server in opened:
        server.__exit__()


def test_a_prompt_is_answered_in_a_stream_that_anybody_can_read_again(served: Any) -> None:
    session = served({"text": "Hello there.", "chunk": 3}).session()
    stream_id = session.say("hi")
    events = session.until(is_result)
    ids = [id for id, _ in events]
    assert ids == sorted(set(ids))
    assert kinds(events) == ["init", "user", "assistant", "result"]
    assert text_of(events) == "Hello there."
    assert all(one["session_id"] == session.id for _, one in events)
    assert events[-1][1]["result"] == "Hello there."
    assert all(one["stream_id"] == stream_id for _, one in events[1:])
    assert session.until(is_result) == events
    for n, (id, _) in enumerate(events[:-1]):
        assert session.until(is_result, after=id) == events[n + 1 :]


def test_sessions_are_listed_shown_and_removed(served: Any, place: Place) -> None:
    server = served({"text": "Hello."})
    session = server.session(name="mine")
    session.answered("hi")
    (listed,) = server.client.get("/v1/sessions").json()
    told = {"session_id": session.id, "name": "mine", "title": "hi", "is_running": False, "cwd": str(place.folder)}
    assert told.items() <= listed.items()
    shown = server.client.get(session.path).json()
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert shown["held_by"] == "server"
    with session.follow() as events:
        heard = iter(events)
        next(heard)
        assert server.client.delete(session.path).status_code == 204
        for _ in heard:  # the stream ends
            pass
    assert server.client.get(session.path).status_code == 404
    assert server.client.get("/v1/sessions").json() == []
    assert place.run("sessions", "restore", session.id).code == 0


def test_a_session_begins_where_and_as_it_is_asked_to(served: Any, tmp_path: Path, place: Place) -> None:
    server = served({"text": "Hello."})
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    other = place.script({"text": "From the other model."})
    given = {"cwd": str(folder), "model": other, "permission_mode": "plan", "user_id": "ann"}
    session = server.session(**given)
    assert session.answered("hi")["result"] == "From the other model."
    assert given.items() <= server.client.get(session.path).json().items()


NO_SESSION = (
    ({"cwd": "relative"}, "absolute"),
    ({"cwd": "/does/not/exist"}, "no such folder"),
    ({"model": "nonsense"}, "nonsense"),
    ({"permission_mode": "root"}, "root"),
    ({"colour": "red"}, "colour"),
    ([], "object"),
)


def test_impossible_session_ids_are_refused(served: Any) -> None:
    server = served({"text": "Hello."})
    for given, said in NO_SESSION:
        answer = server.client.post("/v1/sessions", json=given)
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]
    assert server.client.get("/v1/sessions").json() == []


def test_only_who_has_the_token_gets_in(served: Any) -> None:
    server = served({"text": "Hello."})
    plain = httpx2.Client(base_url=server.url, trust_env=False)
    assert plain.get("/health").json()["status"] == "ok"
    assert plain.get("/").status_code == 200
    for path in ("/v1/sessions", "/v1/usage", "/v1/sessions/x/events", "/nowhere"):
        assert plain.get(path).status_code == 401
        assert plain.get(path, headers={"Authorization": "Bearer wrong-token-of-some-length"}).status_code == 401
        assert plain.get(path, headers={"Authorization": f"Basic {server.token}"}).status_code == 401
    assert plain.post("/v1/sessions", json={}).json()["error"]["code"] == "no_token"
    assert server.client.get("/v1/sessions").status_code == 200
    assert server.client.get("/nowhere").status_code == 404
    assert server.client.put("/v1/sessions").status_code == 405


def test_other_pages_and_other_names_do_not_get_in(served: Any) -> None:
    server = served({"text": "Hello."})
    port = server.url.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[", f"169.254.1.1:{port}"):
        assert server.client.get("/health", headers={"Host": host}).status_code == 403, host
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert server.client.get("/health", headers={"Host": host}).status_code == 200, host
    ports = (f"http://localhost:{int(port) - 1}", f"http://127.0.0.1.evil:{port}")
    for origin in ("https://evil.example", "null", *ports):
        assert server.client.get("/v1/sessions", headers={"Origin": origin}).status_code == 403, origin
    assert server.client.get("/v1/sessions", headers={"Origin": server.url}).status_code == 200


def test_a_name_in_the_settings_gets_in(served: Any) -> None:
    server = served({"text": "Hello."}, AGENTCLI_SERVE_HOSTS="box.lan")
    assert server.client.get("/health", headers={"Host": "box.lan:8000"}).status_code == 200


WRITE = call("file_write", path="a.txt", content="new")


@pytest.mark.parametrize(
    ("asked", "op", "result"),
    [
        (WRITE, {"type": "approve"}, "Created a.txt"),
        (WRITE, {"type": "deny", "comment": "not that one"}, "not that one"),
        (call("ask_user", question="Which?", options=["a", "b"]), {"type": "answer", "text": "the third"}, "the third"),
    ],
)
def test_a_question_waits_until_it_is_answered(
    served: Any, place: Place, asked: dict[str, Any], op: dict[str, Any], result: str
) -> None:
    session = served({"tool_calls": [asked]}, {"text": "{{last_result}}"}).session()
    session.say("go")
    question = session.until(asks)[-1][1]
    told = question["tool_input"] if "tool_input" in question else {key: question[key] for key in asked["input"]}
    assert told == asked["input"]
    assert not (place.folder / "a.txt").exists()
    refused = session.server.client.post(f"{session.path}/ops", json={**op, "id": "another"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nobody_waits")
    session.op(**op, id=question["id"])
    assert result in session.until(is_result)[-1][1]["result"]
    assert (place.folder / "a.txt").exists() == (op["type"] == "approve")


def test_steering_reaches_the_turn_that_runs_and_a_follow_up_comes_after_it(served: Any) -> None:
    slow = {"text": "one two three four five six", "chunk": 2, "delay_ms": 100}
    session = served(slow, {"text": "To the steering."}, {"text": "To the follow-up."}).session()
    first = session.say("begin")
    session.until(lambda one: one["type"] == "stream_event")
    assert session.say("and this", mode="steer") == first
    later = session.say("then that", mode="follow_up")
    assert later != first
    events = session.until(lambda one: is_result(one) and one["stream_id"] == later)
    results = [(one["stream_id"], one["result"]) for _, one in events if is_result(one)]
    assert results[-1] == (later, "To the follow-up.")
    assert results[0][0] == first
    said = [one["message"]["content"][0]["text"] for _, one in events if one["type"] == "user"]
    assert said == ["begin", "and this", "then that"]
    waiting = [one for _, one in events if one.get("subtype") == "queue_changed"]
    assert ["then that"] in [one["follow_ups"] for one in waiting]


def test_a_turn_is_interrupted_and_the_session_continues(served: Any) -> None:
    session = served({"text": LONG, "chunk": 2, "delay_ms": 50}, {"text": "Again."}).session()
    session.say("begin")
    session.until(lambda one: one["type"] == "stream_event")
    session.op("interrupt")
    assert session.until(is_result)[-1][1]["subtype"] == "interrupted"
    assert session.answered("again")["result"] == "Again."


def test_a_tool_of_the_clients_is_run_by_the_client(served: Any) -> None:
    session = served({"tool_calls": [call("weather", city="Rome")]}, {"text": "{{last_result}}"}).session()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"name": "weather", "description": "The weather.", "input_schema": schema}]
    session.say("how is it?", tools=tools)
    asked = session.until(lambda one: one.get("subtype") == "client_tool_requested")[-1][1]
    assert (asked["tool_name"], asked["tool_input"]) == ("weather", {"city": "Rome"})
    assert (
        session.server.client.post(f"{session.path}/ops", json={"type": "client_result", "id": "x"}).status_code == 400
    )
    session.op("client_result", id=asked["id"], content="sunny")
    assert session.until(is_result)[-1][1]["result"] == "sunny"
    clash = [{"name": "bash", "description": "Mine.", "input_schema": schema}]
    refused = session.server.client.post(f"{session.path}/messages", json={"content": "x", "tools": clash})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid")


def test_commands_run_and_are_never_sent_to_the_model(served: Any) -> None:
    session = served({"text": "Hello."}).session()
    session.op("command", text="/cost")
    told = session.until(lambda one: one.get("subtype") == "command")[-1][1]
    assert (told["command"], told["is_error"]) == ("/cost", False)
    result = session.answered("/nonsense")
    assert result["is_error"]
    assert (
        session.server.client.post(f"{session.path}/ops", json={"type": "command", "text": "no command"}).status_code
        == 400
    )
    assert session.answered("/clear")["is_error"], "each session has an address of its own"
    assert session.server.client.get(session.path).json()["messages"] == []


def test_model_and_mode_are_changed_while_it_continues(served: Any, place: Place) -> None:
    session = served({"text": "First."}).session()
    session.answered("hi")
    other = place.script({"text": "Second."})
    session.op("set_model", model=other)
    session.op("set_permission_mode", mode="plan")
    assert session.answered("hi")["result"] == "Second."
    shown = session.server.client.get(session.path).json()
    assert (shown["model"], shown["permission_mode"]) == (other, "plan")
    refused = session.server.client.post(f"{session.path}/ops", json={"type": "set_permission_mode", "mode": "x"})
    assert refused.status_code == 400


BAD_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "x", "data": "a"}}
NO_MESSAGE = (b'{"content":""}', b'{"content":[]}', b'{"content":"x","mode":"loud"}')
SENSELESS = (b"", b"{", b"[]", b"\xff", b"[" * 5_000, *NO_MESSAGE, json.dumps({"content": [BAD_IMAGE]}).encode())


def test_a_message_that_makes_no_sense_is_refused_and_changes_nothing(served: Any) -> None:
    session = served({"text": "Hello."}).session()
    for body in SENSELESS:
        for path in ("messages", "ops"):
            answer = session.server.client.post(f"{session.path}/{path}", content=body)
            assert answer.status_code == 400, (body, answer.text)
            assert answer.json()["error"]["message"]
    assert session.answered("hi")["result"] == "Hello."


def test_a_message_of_one_stream_id_is_taken_once(served: Any) -> None:
    session = served({"text": "First."}, {"text": "Second."}).session()
    for _ in range(3):
        assert session.say("hi", stream_id="my-own") == "my-own"
    session.until(is_result)
    assert session.say("hi", stream_id="my-own") == "my-own"
    time.sleep(0.3)
    assert len(session.server.client.get(session.path).json()["messages"]) == 2


def test_an_id_that_is_not_known_begins_again_with_all_messages(served: Any) -> None:
    session = served({"text": "First."}, {"text": "Second.", "chunk": 2, "delay_ms": 30}).session()
    session.answered("hi")
    for after in (999, 123_456_789_012, "abc", "-5"):
        with session.follow(after) as events:  # type: ignore[arg-type]
            id, one = next(iter(events))
            assert one["subtype"] == "reset"
            assert [message["role"] for message in one["messages"]] == ["user", "assistant"]
            assert id > 0
    session.say("more")
    session.until(lambda one: one["type"] == "stream_event" and one["stream_id"] != one, after=id)
    heard = session.until(lambda one: is_result(one) and one["result"] == "Second.", after=77_777)
    assert heard[0][1]["subtype"] == "reset"
    told = "".join(message["content"][-1].get("text", "") for message in heard[0][1]["messages"])
    # The reply goes on meanwhile: it has ended before the snapshot is made, or comes after it.
    assert "Second." in told or text_of(heard) == "Second.", "what is under way comes after the snapshot"


def test_usage_is_reported(served: Any) -> None:
    session = served({"text": "Hello.", "usage": {"input_tokens": 100, "output_tokens": 10}}).session()
    session.answered("hi")
    told = session.server.client.get("/v1/usage").json()
    assert told["total"]["output_tokens"] == 10
    assert session.server.client.get("/v1/usage", params={"session": session.id}).json()["total"]["requests"] == 1
    assert session.server.client.get("/v1/usage", params={"days": "x"}).status_code == 400


def test_a_unix_socket_and_the_token_are_for_their_owner_alone(served: Any, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    server = served({"text": "Hello."}, flags=("--socket", str(path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(server.told["token_file"]).stat().st_mode) == 0o600
    assert server.session().answered("hi")["result"] == "Hello."
    assert server.ended(signal.SIGTERM).code == 143
    assert not path.exists()


def test_a_token_file_that_others_may_read_is_refused(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-more-than-sixteen-letters\n")
    file.chmod(0o644)
    ran = place.run("serve", "--token-file", str(file))
    assert ran.code == 2
    assert "chmod 600" in ran.err
    file.chmod(0o600)
    file.write_text("short\n")
    assert place.run("serve", "--token-file", str(file)).code == 2
    assert place.run("serve", "--port", "99999").code == 2
    assert place.run("serve", "--workers", "0").code == 2


def test_further_tokens_see_their_users_sessions_alone(served: Any, place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    tokens = {name: f"the-token-of-{name}-is-long-enough" for name in ("ann", "bob")}
    lines = [
        f'[serve.tokens.{name}]\nsha256 = "{sha256(token.encode()).hexdigest()}"\nuser_id = "{name}"\n'
        for name, token in tokens.items()
    ]
    (place.home / "config.toml").write_text("".join(lines))
    server = served({"text": "Hello."})
    ann, bob = server.with_token(tokens["ann"]), server.with_token(tokens["bob"])
    id = ann.post("/v1/sessions", json={}).json()["session_id"]
    assert [one["session_id"] for one in ann.get("/v1/sessions").json()] == [id]
    assert bob.get("/v1/sessions").json() == []
    for path in ("", "/events"):
        assert bob.get(f"/v1/sessions/{id}{path}").status_code == 404
    assert bob.post(f"/v1/sessions/{id}/messages", json={"content": "x"}).status_code == 404
    assert bob.delete(f"/v1/sessions/{id}").status_code == 404
    ann.post("/v1/sessions", json={})
    for start in (id, id[:8], "nothing-begins-so"):
        answers = [bob.get(path) for path in (f"/v1/sessions/{start}", f"/v1/usage?session={start}")]
        told = [(one.status_code, one.text.replace(start, "ID")) for one in answers]
        assert told == [(404, answers[0].text.replace(start, "ID"))] * 2, "as if nobody else had any"
    assert ann.get(f"/v1/sessions/{id[:8]}").status_code == 404
    assert ann.get(f"/v1/usage?session={id}").status_code == 200
    assert bob.post("/v1/sessions", json={"user_id": "ann"}).status_code == 403
    assert server.client.get(f"/v1/sessions/{id}").json()["user_id"] == "ann"


@pytest.mark.parametrize("umask", [0o000, 0o027])
def test_stored_files_are_private_to_their_owner_whatever_the_umask(served: Any, place: Place, umask: int) -> None:
    before = os.umask(umask)
    try:
        server = served({"text": "Hello."})
    finally:
        os.umask(before)
    server.session().say("hi")
    state = place.home / "state"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (state, *state.glob("**/")) if path.is_dir()} == {0o700}


def test_requests_are_limited_by_token(served: Any) -> None:
    server = served({"text": "Hello."}, AGENTCLI_SERVE_RATE_PER_MINUTE="60")
    answers = [server.client.get("/v1/sessions") for _ in range(15)]
    refused = [one for one in answers if one.status_code == 429]
    assert 3 <= len(refused) <= 6
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert server.client.get("/health").status_code == 200


def test_a_budget_holds_for_all_sessions_of_a_token(served: Any, place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    prices = '[models.openai."test-model"]\nmax_output = 1_024\nprices = { input = 10.0, output = 100.0 }\n'
    (place.home / "config.toml").write_text(f"serve.budget_usd = 0.5\n{prices}")
    usage = {"prompt_tokens": 20_000, "completion_tokens": 500}
    reply = Reply(chat_sse([chat_chunk({"content": "Fine."}, "stop", usage=usage)]))
    with chat_server([reply] * 4) as models:
        env = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "sk-test"}
        server = served({"text": "-"}, **env)
        results = [server.session(model="openai/test-model").answered("hi") for _ in range(3)]
    assert [one["subtype"] for one in results] == ["success", "success", "error_max_budget_usd"]


def test_the_description_is_openapi_and_names_every_route(served: Any) -> None:
    server = served({"text": "Hello."})
    told = httpx2.get(f"{server.url}/openapi.json", trust_env=False).json()
    openapi_spec_validator.validate(told)
    assert {"/v1/sessions", "/v1/sessions/{session_id}/events", "/v1/usage", "/health"} <= told["paths"].keys()


def test_a_session_of_a_terminal_is_followed_and_steered_once_it_is_taken_over(served: Any, place: Place) -> None:
    server = served({"text": "From the server."})
    model = place.script({"text": "First."}, {"text": "Second."})
    flags = ("--input-format", "stream-json", "--output-format", "stream-json")
    with place.start("-p", "-m", model, *flags, stdin=True) as terminal:
        terminal.say("one")
        id = terminal.wait_for_type("result")["session_id"]
        session = Client(server, id)
        with session.follow() as events:
            heard = events.until(lambda one: one["type"] == "assistant")
            assert kinds(heard) == ["init", "user", "assistant"]
            terminal.say("two")
            more = events.until(lambda one: one["type"] == "assistant")
            assert [one["message"]["content"][0]["text"] for _, one in more] == ["two", "Second."]
            assert server.client.get(session.path).json()["held_by"] == "terminal"
            refused = server.client.post(f"{session.path}/messages", json={"content": "x"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")
            session.op("take_over")
            terminal.left()
            session.say("three")
            last = events.until(is_result)
            assert last[-1][1]["result"] == "From the server."
            ids = [id for id, _ in (*heard, *more, *last)]
            assert ids == sorted(set(ids))
    said = [one["message"]["content"][0]["text"] for _, one in session.until(is_result) if one["type"] == "user"]
    assert said == ["one", "two", "three"]


def test_redacted_text_is_gone_from_streams_too(served: Any, place: Place) -> None:
    server = served({"text": "Your password is hunter2-hunter2."})
    session = server.session()
    session.answered("hi")
    last = session.until(is_result)[-1][0]
    server.ended(signal.SIGTERM)
    assert place.run("sessions", "redact", session.id, "hunter2-hunter2").code == 0
    for file in (place.home / "state").iterdir():
        assert file.is_dir() or b"hunter2-hunter2" not in file.read_bytes(), file
    server = served({"text": "Hello."})
    ((_, told),) = Client(server, session.id).until(lambda one: one.get("subtype") == "reset", after=last)
    assert "[redacted]" in str(told["messages"])


def test_a_terminal_takes_over_a_session_of_the_server(served: Any, place: Place) -> None:
    session = served({"text": "From the server."}).session()
    session.answered("one")
    model = place.script({"text": "From the terminal."})
    assert place.run("-p", "two", "-r", session.id, "-m", model).code == 1
    ran = place.run("-p", "two", "-r", session.id, "--take-over", "-m", model)
    assert ran.out == "From the terminal.\n", ran.err
    heard = session.until(lambda one: one["type"] == "assistant" and "terminal" in str(one["message"]["content"]))
    assert kinds(heard).count("assistant") == 2


# Ends and kills


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    "reply", [{"text": LONG, "chunk": 3, "delay_ms": 30}, {"tool_calls": [call("bash", command="sleep 60")]}]
)
def test_at_sigterm_every_reader_hears_the_end_of_the_turn(served: Any, reply: dict[str, Any], workers: str) -> None:
    server = served(reply, flags=("--workers", workers, "--permission-mode", "bypassPermissions"))
    session = server.session()
    readers = [session.follow() for _ in range(4)]
    begun = threading.Barrier(len(readers) + 1, timeout=PATIENCE_S)

    def hear(following: Any) -> list[Event]:
        with following as events:
            heard = events.until(lambda one: one["type"] == "stream_event")
            begun.wait()
            return [*heard, *events]  # until the server closes the stream

    with ThreadPoolExecutor(len(readers)) as pool:
        waiting = [pool.submit(hear, one) for one in readers]
        session.say("go")
        begun.wait()
        time.sleep(0.3)
        ending = time.monotonic()
        server.running.signal(signal.SIGTERM)
        everything = [one.result() for one in waiting]
    assert server.running.left().code == 143
    assert time.monotonic() - ending < 10
    for heard in everything:
        assert (heard[-1][1]["type"], heard[-1][1]["subtype"]) == ("result", "interrupted")
        assert [id for id, _ in heard] == sorted({id for id, _ in heard})
    server = served({"text": "After."})
    again = Client(server, session.id)
    last = everything[0][-1][0]
    assert again.answered("more")["result"] == "After."
    rest = again.until(lambda one: is_result(one) and one["result"] == "After.", after=last)
    assert kinds(rest) == ["init", "user", "assistant", "result"]
    assert all(id > max(last, 1_000_000) for id, _ in rest), "an id that a power cut took back is never given again"
    assert again.until(is_result) == everything[0]


def test_a_question_that_waited_for_an_answer_is_asked_again(served: Any, place: Place) -> None:
    server = served({"tool_calls": [call("file_write", path="a.txt", content="new")]}, {"text": "Done."})
    session = server.session()
    session.say("write it")
    last = session.until(asks)[-1][0]
    server.ended()
    server = served({"text": "Done."})
    again = Client(server, session.id)
    asked = again.until(asks, after=last)[-1][1]
    again.op("approve", id=asked["id"])
    assert again.until(is_result)[-1][1]["result"] == "Done."
    assert (place.folder / "a.txt").read_text() == "new"


def test_a_turn_cut_short_by_a_kill_continues_and_queued_messages_are_reported(served: Any) -> None:
    server = served({"text": LONG, "chunk": 2, "delay_ms": 100})
    session = server.session()
    first = session.say("one")
    heard = session.until(lambda one: one["type"] == "stream_event" and one["event"]["type"] == "content_block_delta")
    later = session.say("two", mode="follow_up")
    server.ended()
    again = Client(served({"text": "First."}, {"text": "Second."}), session.id)
    events = again.until(lambda one: is_result(one) and one["stream_id"] == later)
    results = [(one["stream_id"], one["result"]) for _, one in events if is_result(one)]
    assert results == [(first, "First."), (later, "Second.")]
    rest = again.until(is_result, after=heard[-1][0])
    assert [one["is_resumed"] for _, one in rest if one.get("subtype") == "init"] == [True]
    shown = [kind for kind in kinds(again.until(is_result)) if kind != "queue_changed"]
    assert shown == ["init", "user", "init", "assistant", "result"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_client_sends_its_results_to_the_next_server(served: Any, number: signal.Signals) -> None:
    calls = [{**call("weather", city=city), "id": city} for city in ("Rome", "Oslo")]
    server = served({"tool_calls": calls})
    session = server.session()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"name": "weather", "description": "The weather.", "input_schema": schema}]
    stream_id = session.say("how is it?", tools=tools)
    session.until(lambda one: one.get("subtype") == "client_tool_requested" and one["id"] == "Oslo")
    server.ended(number)
    server = served({"text": "So: {{last_result}}"})
    again = Client(server, session.id)
    again.op("client_result", id="Oslo", content="snow")
    again.op("client_result", id="Rome", content="sun")
    events = again.until(lambda one: is_result(one) and one["subtype"] != "paused")
    assert events[-1][1]["result"] == "So: snow"
    assert {one["stream_id"] for _, one in events if is_result(one)} == {stream_id}
    contents = [one["message"]["content"] for _, one in events if one["type"] == "user"]
    results = [part for content in contents for part in content if part["type"] == "tool_result"]
    # Each is accepted before it is stored, so their order is not certain.
    assert sorted((part["tool_use_id"], part["content"]) for part in results) == [("Oslo", "snow"), ("Rome", "sun")]
    op = {"type": "client_result", "id": "Rome", "content": "rain"}
    assert server.client.post(f"{session.path}/ops", json=op).status_code == 409


def test_a_steer_that_waits_when_the_server_ends_is_answered_by_the_next_one(served: Any) -> None:
    server = served({"text": LONG, "chunk": 2, "delay_ms": 100})
    session = server.session()
    first = session.say("one")
    session.until(lambda one: one["type"] == "stream_event")
    for _ in range(3):
        assert session.say("two", mode="steer", stream_id="mine") == first
    server.ended(signal.SIGTERM)
    server = served({"text": "To the steering."})
    again = Client(server, session.id)
    events = again.until(lambda one: is_result(one) and one["result"] == "To the steering.")
    assert [one["message"]["content"][0]["text"] for _, one in events if one["type"] == "user"] == ["one", "two"]


def test_a_model_that_is_refused_changes_nothing_and_one_that_is_gone_keeps_nobody_waiting(
    served: Any, place: Place, tmp_path: Path
) -> None:
    server = served({"text": LONG, "chunk": 2, "delay_ms": 50})
    gone = place.script({"text": LONG, "chunk": 2, "delay_ms": 50})
    bad, good = server.session(model=gone), server.session()
    refused = server.client.post(f"{good.path}/ops", json={"type": "set_model", "model": "bogus/none"})
    assert refused.status_code == 400
    for session in (bad, good):
        session.say("hi")
        session.until(lambda one: one["type"] == "stream_event")
    server.ended()
    Path(gone.removeprefix("scripted/")).unlink()
    server = served({"text": "After."})
    for session in (bad, good):
        end = Client(server, session.id).until(is_result)[-1][1]
        assert end["result"] == "After.", session is bad


@pytest.mark.full
def test_a_server_whose_worker_dies_at_the_start_says_so(place: Place) -> None:
    with place.start("serve", "--workers", "2", env={"AGENTCLI_SERVE_ADVERTISE": "192.0.2.1"}) as server:
        ended = server.left()
    assert (ended.code, ended.out) == (1, "")
    assert "serve.advertise" in ended.err
    assert "A worker could not start." in ended.err


def test_ctrl_c_which_reaches_all_processes_ends_the_workers_in_order(place: Place) -> None:
    command = [sys.executable, "-m", "agentcli", "serve", "--workers", "2"]
    with subprocess.Popen(
        command, cwd=place.folder, env=place.environment, stdout=subprocess.PIPE, start_new_session=True
    ) as server:
        assert server.stdout is not None
        assert b"url" in server.stdout.readline()
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait(PATIENCE_S) == 130
    assert [*(place.home / "state/serve").glob("*.sock")] == []


def test_a_socket_that_a_later_server_has_taken_stays(served: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    first = served({"text": "First."}, flags=("--socket", path))
    Path(path).rename(f"{path}.old")
    second = served({"text": "Second."}, flags=("--socket", path))
    first.ended(signal.SIGTERM)
    assert second.session().answered("hi")["result"] == "Second."


@pytest.mark.parametrize(("headers", "status"), [({"Origin": "http://["}, 403), ({"Last-Event-ID": "9" * 19}, 200)])
def test_headers_that_make_no_sense_break_nothing(served: Any, headers: dict[str, str], status: int) -> None:
    session = served({"text": "Hello."}).session()
    with session.server.client.stream("GET", f"{session.path}/events", headers=headers) as answer:
        assert answer.status_code == status
        if status == 200:
            assert next(events_in(answer.iter_bytes()))[1]["subtype"] == "reset"
    for op in ({"type": "steer", "message": {"content": []}}, {"type": "client_tools", "tools": [{"name": "!"}]}):
        assert session.server.client.post(f"{session.path}/ops", json=op).status_code == 400


def test_killed_at_random_moments_no_message_is_lost_and_none_is_reported_twice(served: Any, place: Place) -> None:
    """Prompts that were acknowledged are answered, each once, whatever is killed in between."""
    replies = [{"text": f"Answer {n}.", "chunk": 3, "delay_ms": 5} for n in range(40)]
    server = served(*replies)
    session = server.session()
    sent: list[str] = []
    for round in range(12):
        for n in range(2):
            sent.append(session.say(f"prompt {round}.{n}"))
        time.sleep(0.02 * round % 0.13)
        server.ended()
        server = served(*replies)
        session = Client(server, session.id)
        events = session.until(lambda one: is_result(one) and one["stream_id"] == sent[-1])
    ids = [id for id, _ in events]
    assert ids == sorted(set(ids))
    results = [one["stream_id"] for _, one in events if is_result(one)]
    assert results == sent
    prompts = [one["message"]["content"][0]["text"] for _, one in events if one["type"] == "user"]
    assert prompts == [f"prompt {round}.{n}" for round in range(12) for n in range(2)]
    entries = json.loads(place.run("sessions", "show", session.id, "--json").out)["entries"]
    replied = [entry["id"] for entry in entries if entry["body"]["kind"] == "assistant"]
    assert [one["message"]["id"] for _, one in events if one["type"] == "assistant"] == replied


@pytest.mark.full
def test_cut_at_every_byte_a_stream_loses_nothing_and_doubles_nothing(served: Any) -> None:
    session = served({"text": "Grüße! ✓ " * 3, "chunk": 6}, AGENTCLI_SERVE_RATE_PER_MINUTE="10000000").session()
    session.answered("hi")
    first, *rest = session.until(is_result)
    last = rest[-1][0]
    raw = _raw(session, first[0], None, last=last)
    assert list(events_in(iter([raw]))) == rest

    def cut(length: int) -> list[Event]:
        heard = list(events_in(iter([_raw(session, first[0], length, last=last)])))
        after = heard[-1][0] if heard else first[0]
        if after < last:
            heard += events_in(iter([_raw(session, after, None, last=last)]))
        return heard

    with ThreadPoolExecutor(4) as at_once:
        for length, heard in enumerate(at_once.map(cut, range(len(raw)))):
            assert heard == rest, f"cut after {length} bytes"


def _raw(session: Client, after: int, most: int | None, *, last: int) -> bytes:
    """The body of the stream, of which no more than `most` bytes are read, or all up to the event `last`."""
    headers, data, end = {"Last-Event-ID": str(after)}, b"", b"id: %d\n" % last
    with session.server.client.stream("GET", f"{session.path}/events", headers=headers) as answer:
        for part in answer.iter_raw():
            data += part
            if most is not None and len(data) >= most:
                return data[:most]
            if most is None and b"\n\n" in data[(found := data.find(end)) :] and found >= 0:
                return data[: data.index(b"\n\n", found) + 2]
    return data


@pytest.mark.full
def test_when_a_worker_is_killed_every_stream_continues_within_five_seconds(served: Any, place: Place) -> None:
    server = served({"text": LONG, "chunk": 4, "delay_ms": 30}, flags=("--workers", "2"))
    sessions = [server.session() for _ in range(12)]

    def kill() -> None:
        lock = (place.home / "state" / "locks" / f"{sessions[0].id}.lock").stat().st_ino
        held = (line.split() for line in Path("/proc/locks").read_text().splitlines() if f":{lock} " in line)
        os.kill(int(next(held)[4]), signal.SIGKILL)

    killed, heard = followed_through_kill(sessions, kill)
    for events in heard:
        next_one = min(at for at, one in events if at > killed and one["type"] in ("stream_event", "result"))
        assert next_one - killed < 5, f"{next_one - killed:.1f} s"
    assert any(one.get("is_resumed") for events in heard for _, one in events), "the worker had sessions"


def test_any_worker_answers_for_all_sessions(served: Any) -> None:
    server = served(*({"text": f"Answer {n}."} for n in range(10)), flags=("--workers", "3"))
    session = server.session()
    for n in range(6):
        with server.with_token(server.token) as client:  # a connection of its own: any worker may get it
            answer = client.post(f"{session.path}/messages", json={"content": f"prompt {n}"})
            assert answer.status_code == 202, answer.text
            stream_id = answer.json()["stream_id"]
            session.until(lambda one: is_result(one) and one["stream_id"] == stream_id)  # noqa: B023
    messages = server.client.get(session.path).json()["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"] * 6


def test_without_the_extra_it_says_what_to_install(place: Place, tmp_path: Path) -> None:
    (tmp_path / "without" / "starlette").mkdir(parents=True)
    (tmp_path / "without" / "starlette" / "__init__.py").write_text("raise ModuleNotFoundError(name='starlette')\n")
    for flags in ((), ("--workers", "2")):
        ran = place.run("serve", *flags, env={"PYTHONPATH": str(tmp_path / "without")})
        assert (ran.code, ran.out) == (2, "")
        assert "agentcli[server]" in ran.err
