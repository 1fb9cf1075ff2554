"""Budgets in money, tokens, time and calls: what is reserved, refused, charged and said, from the outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.app.running import Place, Ran, call
from tests.app.terminal import Open
from tests.conformance.replies import chat_chunk, chat_sse
from tests.conformance.servers import Answer, LoopbackServer, Received, Reply, chat_server

pytestmark = pytest.mark.slow
approx = pytest.approx

PRICED = """
[models.openai."test-model"]
max_output = 20_000
prices = { input = 10.0, output = 100.0, cache_write = 20.0 }
"""


@pytest.fixture
def priced(place: Place) -> Place:
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(PRICED)
    return place


def asked(place: Place, server: LoopbackServer, *arguments: str, prompt: str = "go", **env: str) -> Ran:
    environment = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test", **env}
    return place.run("-m", "openai/test-model", "-p", prompt, "--output-format", "json", *arguments, env=environment)


def says(text: str = "Fine.", *, prompt: int = 2_000, output: int = 10, delta: Any = None, stop: str = "stop") -> Reply:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return Reply(chat_sse([chat_chunk(delta or {"content": text}, stop, usage=usage)]))


def longest(server: LoopbackServer) -> list[int]:
    return [request.json.get("max_tokens") or request.json["max_completion_tokens"] for request in server.requests]


def used_up(ran: Ran, kind: str) -> None:
    assert (ran.code, ran.result["subtype"], ran.result["is_error"]) == (54, "error_max_budget_usd", True), ran.err
    assert f"{kind} is used up" in ran.err


def test_a_reply_may_be_as_long_as_the_budget_pays_for(priced: Place) -> None:
    with chat_server([says(), says()]) as server:
        assert asked(priced, server).code == 0
        ran = asked(priced, server, "--max-budget-usd", "0.5")
    assert (ran.code, longest(server)[0]) == (0, 20_000)
    prompt = len(server.requests[1].body) / 4  # whatever it was estimated to be, it was not less than that
    assert 1_024 <= longest(server)[1] < (0.5 - prompt * 20e-6) / 100e-6


def test_a_request_that_leaves_no_room_for_an_answer_is_not_sent(priced: Place) -> None:
    with chat_server([says()]) as server:
        ran = asked(priced, server, "--max-budget-usd", "0.1")
    used_up(ran, "session's budget of $0.10")
    assert (server.requests, ran.result["num_turns"], ran.result["total_cost_usd"]) == ([], 0, 0.0)
    assert "Your message was removed from the conversation." in ran.err


@pytest.mark.parametrize(
    ("setting", "value", "what"),
    [
        ("turn_usd", "0.1", "turn's budget of $0.10"),
        ("turn_tokens", "2000", "turn's budget of 2,000 tokens"),
        ("session_tokens", "2000", "session's budget of 2,000 tokens"),
        ("day_tokens", "2000", "day's budget of 2,000 tokens"),
        ("day_usd", "0.1", "day's budget of $0.10"),
    ],
)
def test_every_scope_holds(priced: Place, setting: str, value: str, what: str) -> None:
    with chat_server([says()]) as server:
        used_up(asked(priced, server, **{f"AGENTCLI_BUDGETS_{setting.upper()}": value}), what)
    assert server.requests == []


def test_a_broken_stream_and_its_retry_are_paid_for_from_the_budget(priced: Place) -> None:
    usage = {"prompt_tokens": 2_000, "completion_tokens": 3_000}
    body = chat_sse([chat_chunk({"content": ""}, usage=usage)], done=False)
    with chat_server([Reply(body, breaks_after=len(body)), says()]) as server:
        ran = asked(priced, server, "--max-budget-usd", "1")
        used = ran.result["total_cost_usd"]
        assert (ran.code, used) == (0, approx(0.32 + 0.021))
        first, second = longest(server)
        assert second <= first - 3_000
        again = asked(priced, server, "--max-budget-usd", "0.45", "--continue")
    used_up(again, "session's budget of $0.45")


def test_a_broken_stream_that_reported_nothing_is_booked_with_an_estimate(priced: Place) -> None:
    body = chat_sse([chat_chunk({"content": "Half of an answer that goes on and on. " * 20})], done=False)
    with chat_server([Reply(body, breaks_after=len(body))] * 2) as server:
        ran = asked(priced, server, AGENTCLI_RETRY_MAX="0")
    usage = ran.result["usage"]
    sent = sum(len(request.body) for request in server.requests)
    assert sent / 8 < usage["input_tokens"] < sent / 2
    assert 300 < usage["output_tokens"] < 800
    assert ran.result["total_cost_usd"] == approx((usage["input_tokens"] + 10 * usage["output_tokens"]) / 1e5)


def test_a_refused_request_costs_nothing(priced: Place) -> None:
    refusal = Reply(b'{"error":{"message":"no room"}}', 503, "application/json")
    with chat_server([refusal, says()]) as server:
        ran = asked(priced, server)
    assert (ran.code, ran.result["usage"]["input_tokens"]) == (0, 2_000)


def test_calls_beyond_the_budget_do_not_run(priced: Place) -> None:
    reads = {
        "tool_calls": [
            {"index": n, "id": f"c{n}", "function": {"name": "bash", "arguments": f'{{"command":"touch made{n}"}}'}}
            for n in range(2)
        ]
    }
    one = {"tool_calls": reads["tool_calls"][:1]}
    with chat_server([says(delta=one, stop="tool_calls"), says(delta=reads, stop="tool_calls")]) as server:
        ran = asked(priced, server, "--permission-mode", "bypassPermissions", AGENTCLI_BUDGETS_TURN_CALLS="2")
    used_up(ran, "turn's budget of 2 calls")
    assert [file.name for file in priced.folder.glob("made*")] == ["made0"]


def test_a_request_ends_with_the_time_there_is_for_it(priced: Place) -> None:
    body = chat_sse([chat_chunk({"content": "Slow"})], done=False)
    with chat_server([Reply(body, falls_silent_after=len(body))]) as server:
        ran = asked(priced, server, AGENTCLI_BUDGETS_TURN_SECONDS="1")
    used_up(ran, "turn's budget of 1 s")
    assert ran.result["result"] == "Slow"
    assert ran.result["duration_ms"] < 20_000


def test_it_is_reported_once_that_a_budget_is_nearly_used_up(priced: Place) -> None:
    look = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "file_list", "arguments": "{}"}}]}
    replies = [says(delta=look, stop="tool_calls", output=n) for n in (8_200, 10, 10)]
    (priced.home / "config.toml").write_text(PRICED.replace("20.0", "1.0").replace("= 10.0", "= 1.0"))
    with chat_server([*replies, says()]) as server:
        ran = asked(priced, server, "--max-budget-usd", "1")
    assert ran.code == 0, ran.err
    assert ran.err.count("The session's budget is 82% used: $0.82 of $1.00.") == 1


def test_an_unknown_price_is_reported_once_and_its_tokens_can_be_held(place: Place) -> None:
    with chat_server([says(), says()]) as server:
        ran = asked(place, server, "--max-budget-usd", "0.01")
        assert (ran.code, ran.err.count("The price of test-model is unknown")) == (0, 1)
        used_up(asked(place, server, AGENTCLI_BUDGETS_SESSION_TOKENS="2000"), "session's budget of 2,000 tokens")


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "0"])
def test_a_budget_is_a_number_of_dollars(place: Place, value: str) -> None:
    ran = place.run("-m", place.script({"text": "done"}), "-p", "go", "--max-budget-usd", value)
    assert (ran.code, ran.out) == (2, "")
    assert "command line: --max-budget-usd (limits.max_budget_usd): " in ran.err


def test_a_side_question_is_paid_for_from_the_budget(priced: Place) -> None:
    with chat_server([says(output=4_000)] * 2) as server:
        assert asked(priced, server, "--max-budget-usd", "1").code == 0
        ran = priced.run(
            "-m", "openai/test-model", "-c", "-p", "/btw why?", "--max-budget-usd", "0.5",
            env={"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"},
        )  # fmt: skip
    assert ran.code == 1
    assert "session's budget of $0.50 is used up" in ran.err
    assert len(server.requests) == 1


def billing() -> Iterator[Answer]:
    """Replies as long as they may be."""

    def bill(received: Received) -> Reply:
        most = received.json.get("max_tokens") or received.json["max_completion_tokens"]
        return says(prompt=len(received.body) // 4, output=most)

    while True:
        yield bill


def test_a_day_holds_for_all_processes_at_once(priced: Place) -> None:
    priced.is_warm = False
    ends: list[Ran] = []
    env = {"AGENTCLI_BUDGETS_DAY_USD": "1.3", "AGENTCLI_TOKENS_MAX_OUTPUT": "4000"}
    with chat_server(billing()) as server:
        runs = [threading.Thread(target=lambda: ends.append(asked(priced, server, **env))) for _ in range(6)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        used_up(asked(priced, server, **env), "day's budget of $1.30")
    assert {ran.code for ran in ends} == {0, 54}
    assert 0.8 < sum(ran.result["total_cost_usd"] for ran in ends) <= 1.3


def test_a_day_knows_what_was_spent_without_a_budget(priced: Place) -> None:
    with chat_server(billing()) as server:
        env = {"AGENTCLI_BUDGETS_DAY_USD": "2", "AGENTCLI_TOKENS_MAX_OUTPUT": "4000"}
        assert asked(priced, server, **env).code == 0
        assert asked(priced, server, "--no-session").result["total_cost_usd"] > 1.8
        used_up(asked(priced, server, **env), "day's budget of $2.00")


def test_a_day_that_cannot_be_written_matters_only_to_who_limits_it(priced: Place) -> None:
    (priced.home / "state").mkdir(exist_ok=True)
    (priced.home / "state" / "budgets.db").write_bytes(b"no database" * 1_000)
    with chat_server([says()]) as server:
        assert asked(priced, server).code == 0
        ran = asked(priced, server, AGENTCLI_BUDGETS_DAY_USD="2")
    assert ran.code == 1
    assert "which a budget of the day needs" in ran.result["result"]


def test_a_reply_that_the_server_did_not_count_is_paid_for(priced: Place) -> None:
    uncounted = Reply(chat_sse([chat_chunk({"content": "word " * 2_000}, "stop")]))
    with chat_server([uncounted, says()]) as server:
        ran = asked(priced, server)
        usage = ran.result["usage"]
        assert len(server.requests[0].body) / 8 < usage["input_tokens"] < len(server.requests[0].body) / 2
        assert usage["output_tokens"] == 2_500
        assert ran.result["total_cost_usd"] == approx((usage["input_tokens"] + 10 * 2_500) / 1e5)
        used_up(asked(priced, server, "-c", "--max-budget-usd", "0.3"), "session's budget of $0.30")


def test_a_silent_server_may_bill_what_it_took(priced: Place) -> None:
    def silent(received: Received) -> Reply:
        time.sleep(2.5)
        return says()

    with chat_server([silent, says()]) as server:
        ran = asked(priced, server, AGENTCLI_PROVIDER_READ_TIMEOUT="1")
    assert (ran.code, ran.result["total_cost_usd"]) == (0, approx(0.021 + len(server.requests[0].body) / 4e5, 0.4))
    assert ran.result["total_cost_usd"] > 0.025


def test_images_that_another_model_was_not_shown_count_for_one_that_sees_them(priced: Place) -> None:
    seeing = PRICED.replace("test-model", "seeing").replace("max_output", "takes_images = true\nmax_output")
    (priced.home / "config.toml").write_text(PRICED + seeing)
    billed = []

    def bill(received: Received) -> Reply:
        most = received.json.get("max_tokens") or received.json["max_completion_tokens"]
        text = received.body.decode()
        images = text.count('"image_url":{')
        prompt = 2_000 + 1_500 * images
        billed.append(prompt + (most if images else 10))
        return says(prompt=prompt, output=most if images else 10)

    for number in range(8):
        Image.new("RGB", (1_000, 1_000), (number, 0, 0)).save(priced.folder / f"{number}.png")
    budget = {"AGENTCLI_BUDGETS_SESSION_TOKENS": "30000"}
    with chat_server([bill, bill]) as server:
        prompt = " ".join(f"@{number}.png" for number in range(8))
        assert asked(priced, server, prompt=prompt, **budget).code == 0
        asked(priced, server, "-c", "-m", "openai/seeing", **budget)
    assert len(billed) == 2
    assert 2_000 + 8 * 1_500 < sum(billed) <= 30_000


@pytest.mark.parametrize(("answer", "then"), [("y", "\nthere"), ("n", "budget is used up")])
def test_the_terminal_asks_for_more_once(open_terminal: Open, answer: str, then: str) -> None:
    dear = {"tool_calls": [call("file_list")], "usage": {"input_tokens": 10, "cost_usd": 5.2}}
    terminal = open_terminal([dear, {"text": "there"}], "--max-budget-usd", "1", "go")
    terminal.see("Continue")
    shown = " ".join(terminal.settle(0.5).split())
    assert "budget of $1.00 is used up" in shown
    assert "Raise it to $6.20?" in shown
    terminal.type(answer)
    assert ("there" in terminal.see(then)) == (answer == "y")
    assert answer == "n" or "Not run" not in terminal.transcript()


def test_a_session_of_the_log_continues_with_what_it_had_spent(place: Place, tmp_path: Path) -> None:
    dear = {"text": "paid", "tool_calls": [call("file_list")], "usage": {"input_tokens": 10}}
    model = place.script(dear, dear, dear, {"text": "done"})
    ran = place.run("-m", model, "-p", "go", "--output-format", "json")
    assert ran.code == 0
    env, flags = {"AGENTCLI_BUDGETS_SESSION_CALLS": "3"}, ("-p", "go", "--output-format", "json")
    ran = place.run("-m", place.script(dear), "-c", *flags, env=env)
    used_up(ran, "session's budget of 3 calls")
    entries = json.loads(place.run("sessions", "show", ran.result["session_id"], "--json").out)["entries"]
    assert entries[-1]["body"]["result"]["content"].startswith("Not run")
