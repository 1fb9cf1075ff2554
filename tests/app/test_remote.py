"""`/remote`: the session of a terminal, followed and steered from a page as well; the first answer counts."""

import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from tests.app.http_client import Client, is_result
from tests.app.running import PATIENCE_S, call
from tests.app.terminal import Open, link_of

pytestmark = pytest.mark.slow  # each opens the program in a terminal

EDIT = {"tool_calls": [call("file_edit", path="a.py", old_string="hi", new_string="hello")]}


def paired(link: str) -> Client:
    """Open the link as the page does, and return a client of its session."""
    url, code = link.split("/#once=")
    http = httpx2.Client(base_url=url, timeout=PATIENCE_S, trust_env=False)
    answer = http.post("/v1/pair", headers={"Authorization": f"Bearer {code}"})
    assert answer.status_code == 200, answer.text
    http.headers["Authorization"] = f"Bearer {answer.json()['token']}"
    return Client(SimpleNamespace(client=http), answer.json()["session_id"])  # type: ignore[arg-type]


def asks(one: dict[str, Any]) -> bool:
    return one.get("subtype") == "approval_requested"


def settles(one: dict[str, Any]) -> bool:
    return one.get("subtype") == "approval_settled"


def test_the_page_answers_a_question_of_the_terminal(open_terminal: Open) -> None:
    terminal = open_terminal([EDIT, {"text": "Changed."}, {"text": "Again."}])
    page = paired(link_of(terminal))
    terminal.type("change it\r")
    terminal.asked()
    asked = page.until(asks)[-1][1]
    page.op("approve", id=asked["id"])
    assert page.until(is_result)[-1][1]["result"] == "Changed."
    terminal.see("Allowed on the page")
    terminal.see("Changed.")
    page.say("and once more")
    terminal.see("› and once more")
    terminal.see("Again.")
    with pytest.raises(AssertionError, match="nobody_waits"):
        page.op("approve", id=asked["id"])


def test_an_answer_in_the_terminal_closes_the_question_on_the_page(open_terminal: Open) -> None:
    terminal = open_terminal([EDIT, {"text": "As you like."}])
    page = paired(link_of(terminal))
    terminal.type("change it\r")
    terminal.asked()
    asked = page.until(asks)[-1][1]
    terminal.type("n")
    assert page.until(settles)[-1][1]["id"] == asked["id"]
    with pytest.raises(AssertionError, match="nobody_waits"):
        page.op("approve", id=asked["id"])
    terminal.see("As you like.")


def test_a_terminal_that_is_killed_asks_again_and_the_call_runs_once(open_terminal: Open, tmp_path: Path) -> None:
    run = {"tool_calls": [call("file_write", path="b.py", content="once\n")]}
    terminal = open_terminal([run, {"text": "Written."}])
    page = paired(link_of(terminal))
    terminal.type("write it\r")
    page.until(asks)
    terminal.kill(signal.SIGKILL)
    terminal.exit_code()
    with pytest.raises(httpx2.HTTPError):
        page.op("approve", id="call")
    again = open_terminal([{"text": "Written."}], "-c")
    again.asked()
    again.type("y")
    again.see("Written")
    known = paired(link_of(again)).until(lambda one: one.get("subtype") == "init")
    assert sum("tool_result" in str(one) for _, one in known if one["type"] == "user") == 1
    assert (tmp_path / "project" / "b.py").read_text() == "once\n"


def test_a_link_opens_one_session_once(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "Hello."}], "hi")
    terminal.see("Hello.")
    link = link_of(terminal)
    assert "█" not in terminal.text(), "no other device reaches it, so there is no QR code"
    page = paired(link)
    terminal.see("opened this session's page")
    with pytest.raises(AssertionError, match="wrong_token"):
        paired(link)
    http = page.server.client
    assert http.get(page.path).json()["held_by"] == "server"
    assert http.get("/v1/sessions").json()["error"]["code"] == "one_session"
    assert http.get("/v1/sessions/another").json()["error"]["code"] == "one_session"
    assert http.delete(page.path).json()["error"]["code"] == "one_session"
    terminal.type("/remote off\r")
    terminal.see("The page is closed")
    with pytest.raises(httpx2.HTTPError):
        http.get(page.path)
    terminal.type("still here?\r")
    terminal.see("› still here")


def test_the_page_ends_with_its_session(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "Hello."}])
    page = paired(link_of(terminal))
    terminal.type("/clear\r")
    terminal.see("The page of the previous session is closed")
    with pytest.raises(httpx2.HTTPError):
        page.say("is anybody there?")
    assert paired(link_of(terminal)).id != page.id


def test_typed_twice_at_once_the_command_serves_one_page(open_terminal: Open) -> None:
    terminal = open_terminal([{"text": "Hello."}])
    terminal.see("› Ask")
    terminal.type("/remote\r")
    terminal.type("/remote\r")
    shown = terminal.see(r"#once=(?s:.*)#once=")
    assert len(set(re.findall(r"127\.0\.0\.1:\d+", shown))) == 1
