"""A provider that fails: the person reads why, and one Enter sends the message again, once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.app.terminal import Open, Terminal
from tests.app.test_input import PNG, pasted
from tests.conformance.replies import Call, Said, anthropic_reply
from tests.conformance.servers import LoopbackServer, Received, Reply, anthropic_server, json_reply

pytestmark = pytest.mark.slow  # each opens the program in a terminal

LINES = "".join(f"pasted line {number}\n" for number in range(120))
NO_CREDIT = "Your credit balance is too low to access the Anthropic API."


def failing(status: int, kind: str, message: str) -> Reply:
    return json_reply({"type": "error", "error": {"type": kind, "message": message}}, status)


BUSY = failing(529, "overloaded_error", "Overloaded")


SLOW = {"AGENTCLI_RETRY_INITIAL_DELAY": "0.8"}  # so that the row of a retry can be seen


def at(server: LoopbackServer, *, retries: int = 1) -> dict[str, str]:
    retry = {"AGENTCLI_RETRY_MAX": str(retries), "AGENTCLI_RETRY_INITIAL_DELAY": "0.01"}
    return {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-ant-1", **retry}


def start(open_terminal: Open, server: LoopbackServer, *flags: str, **more: Any) -> Terminal:
    return open_terminal(None, "-m", "anthropic/claude-sonnet-5-5", *flags, **{**at(server), **more})


def said(received: Received) -> list[str]:
    """The person's messages and other blocks of a request, without system reminders."""
    blocks = [block for message in received.json["messages"] for block in message["content"]]
    texts = [block.get("text", block["type"]) for block in blocks]
    return [text for text in texts if not text.startswith("<system-reminder>")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("reply", "tries", "line"),
    [
        (BUSY, 2, "Anthropic is overloaded (HTTP 529, tried 2 times over 1 s). Press Enter to retry, or /model to"),
        (failing(500, "api_error", "Oops"), 2, "Anthropic: Oops (HTTP 500, tried 2 times over 1 s). Press Enter to"),
        (failing(429, "rate_limit_error", "Slow down"), 2, "Anthropic: Slow down (HTTP 429, tried 2 times over 1 s)."),
        (
            failing(401, "authentication_error", "no"),
            1,
            "Anthropic: no (HTTP 401). Set a key with /login anthropic",
        ),
        (
            failing(400, "invalid_request_error", NO_CREDIT),
            1,
            f"{NO_CREDIT[:-1]} (HTTP 400). Add credit to the account",
        ),
    ],
)
def test_the_cause_is_named_and_one_enter_sends_the_message_again(
    open_terminal: Open, reply: Reply, tries: int, line: str
) -> None:
    with anthropic_server([*[reply] * tries, *[reply] * tries, anthropic_reply("There.")]) as server:
        terminal = start(open_terminal, server, columns=80)
        terminal.see("claude-sonnet")
        terminal.type(f"look at {pasted(LINES)} now\r")
        for count in (1, 2):
            shown = terminal.see(rf"(?s)(✗ .*){{{count}}}\n› look at \[Pasted #1 \+120 lines\] now\n")
            assert line in " ".join(shown.replace("\n  ", " ").split())
            terminal.rest()
            terminal.type("\r")
        terminal.see("There")
        assert [said(request) for request in server.requests] == [[f"look at {LINES} now"]] * (2 * tries + 1)


def test_what_steers_comes_back_with_the_prompt_and_an_attached_image_is_sent_once(
    open_terminal: Open, tmp_path: Path
) -> None:
    (tmp_path / "project/shot.png").write_bytes(bytes.fromhex(PNG))
    with anthropic_server([BUSY, BUSY, anthropic_reply("There.")]) as server:
        terminal = start(open_terminal, server, AGENTCLI_RETRY_INITIAL_DELAY="2")
        terminal.see("claude-sonnet")
        terminal.type("what is on @shot.png \r")
        terminal.see(r"Retry 1 of 1 in \d s · Esc to stop · Overloaded \(HTTP 529\)")
        terminal.type("be brief\r")
        terminal.see(r"next: be brief")
        terminal.see(r"✗(?s:.*)\n› what is on @shot\.png\n +be brief\n")
        terminal.rest()
        terminal.type("\r")
        terminal.see("There")
        message, about, image = said(server.requests[-1])
        assert (message, about[:9], image) == ("what is on @shot.png\nbe brief", "shot.png:", "image")


def test_a_message_whose_retries_are_stopped_is_back_too(open_terminal: Open) -> None:
    with anthropic_server([BUSY, anthropic_reply("There.")]) as server:
        terminal = start(open_terminal, server, "go", AGENTCLI_RETRY_INITIAL_DELAY="30")
        terminal.see(r"Retry 1 of 1 in \d\d s · Esc to stop")
        terminal.type("\x1b")
        terminal.see(r"Interrupted(?s:.*)\n› go\n")
        terminal.rest()
        terminal.type(" again\r")
        terminal.see("There")
        assert said(server.requests[-1]) == ["go again"]


def test_the_fallback_model_answers_after_two_retries_which_name_it(open_terminal: Open) -> None:
    haiku = "anthropic/claude-haiku-4-5"
    with anthropic_server([BUSY, BUSY, BUSY, anthropic_reply("There.")]) as server:
        terminal = start(open_terminal, server, "go", "--fallback-model", haiku, **at(server, retries=7) | SLOW)
        terminal.see(rf"Retry 1 of 2 in \d s, then {haiku} · Esc to stop · Overloaded")
        terminal.see("There")
        assert f"Continuing with {haiku}" in " ".join(terminal.text().split())
        assert [request.json["model"] for request in server.requests] == ["claude-sonnet-5-5"] * 3 + [
            "claude-haiku-4-5"
        ]


def test_a_message_is_back_that_was_interrupted_before_any_answer(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "late", "delay_ms": 30_000}, {"text": "There."}], "go")
    terminal.see("Esc to interrupt")
    terminal.settle(1.0)
    terminal.type("\x1b")
    terminal.see(r"Interrupted(?s:.*)\n› go\n")


@pytest.mark.parametrize("steering", ["", "be brief"])
def test_work_that_was_done_stays_and_enter_goes_on(open_terminal: Open, steering: str) -> None:
    look = anthropic_reply(Said(calls=(Call("toolu_1", "file_read", {"path": "a.py"}),)))
    with anthropic_server([look, BUSY, BUSY, anthropic_reply("There.")]) as server:
        terminal = start(open_terminal, server, "go", AGENTCLI_RETRY_INITIAL_DELAY="2" if steering else "0.01")
        if steering:
            terminal.see("Retry 1 of 1")
            terminal.type(f"{steering}\r")
        terminal.see(rf"✗ Anthropic is overloaded(?s:.*)\n› {steering or 'Ask'}")
        terminal.rest()
        terminal.type("\r")
        terminal.see("There")
        assert said(server.requests[-1]) == ["go", "tool_use", "tool_result", *([steering] if steering else [])]


def test_a_later_start_has_the_message_in_the_input_or_sends_it_by_enter(open_terminal: Open) -> None:
    with anthropic_server([BUSY, BUSY, anthropic_reply("There."), BUSY, BUSY, anthropic_reply("And here.")]) as server:
        first = start(open_terminal, server)
        first.see("claude-sonnet")
        first.type("go\r")
        first.see(r"✗(?s:.*)\n› go\n")
        first.settle(1.0)
        first.kill(signal.SIGKILL)
        first.exit_code()
        second = start(open_terminal, server, "-c")
        second.see("\n› go\n")
        second.type("\r")
        second.see("There")
        assert said(server.requests[-1]) == ["go"]
        second.leave()
        assert second.exit_code() == 0
        failed = start(open_terminal, server, "-c", "-p", "more")
        failed.see("Try again later")
        assert failed.exit_code() == 1
        third = start(open_terminal, server, "-c")
        third.see("Press Enter to continue it")
        third.type("more\r")
        third.see("And here")
        assert said(server.requests[-1]) == ["go", "There.", "more"]


def test_lines_alone_send_it_again_too(open_terminal: Open) -> None:
    with anthropic_server([BUSY, BUSY, anthropic_reply("There.")]) as server:
        terminal = start(open_terminal, server, "--plain", "go")
        terminal.see("Press Enter to retry")
        terminal.settle()
        terminal.type("\r")
        terminal.see("There")
        assert said(server.requests[-1]) == ["go"]
