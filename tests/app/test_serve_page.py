"""The web page of `agentcli serve`, in a real browser: connect, watch, approve, lose the network, come back."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.app.http_client import Client, Server
from tests.app.running import Place, call
from tests.app.terminal import Open, link_of

pytestmark = pytest.mark.slow

LONG = "The quick brown fox jumps over the lazy dog. " * 8
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


class Link:
    """The network between the browser and the server, which can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: list[socket.socket] = []
        self._is_cut = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                if self._is_cut:
                    here.close()
                    continue
                there = socket.create_connection(("127.0.0.1", self._to))
                self._open += (here, there)
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self._is_cut = True
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._listening.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        assert not os.environ.get("CI"), "CI has Chromium"
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def visit(place: Place, browser: Any) -> Iterator[Any]:
    """Starts a server on a script, and opens its page as a phone shows it."""
    closing: list[Any] = []

    def open_page(*replies: dict[str, Any], token: bool = True) -> tuple[Any, Server, Link]:
        server = Server(place, "-m", place.script(*replies))
        link = Link(int(server.url.rpartition(":")[2]))
        context = browser.new_context(**PHONE)
        closing.extend((context.close, link.close, server.__exit__))
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: pytest.fail(f"the page failed: {error}"))
        page.goto(f"{link.url}/#token={server.token}" if token else link.url)
        return page, server, link

    yield open_page
    for close in closing:
        close()


def begin(page: Any, prompt: str) -> None:
    page.get_by_role("button", name="New session").click()
    say(page, prompt)


def say(page: Any, text: str, button: str = "Send") -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name=button, exact=True).click()


def session_of(page: Any, server: Server) -> Client:
    found = re.search("session=(.+)", page.url)
    assert found is not None
    return Client(server, found[1])


@pytest.mark.full
def test_a_call_is_watched_and_approved_on_a_phone(visit: Any, place: Place) -> None:
    edit = call("file_edit", path="a.py", old_string="two", new_string="2")
    (place.folder / "a.py").write_text("one\ntwo\n")
    page, _server, _ = visit(
        {"tool_calls": [call("file_read", path="a.py")]}, {"tool_calls": [edit]}, {"text": "It is `done`."}
    )
    begin(page, "change it")
    assert "token" not in page.url, "the address can be shown to others"
    allow = page.get_by_role("button", name="Allow", exact=True)
    allow.wait_for()
    allow.scroll_into_view_if_needed()
    box = allow.bounding_box()
    assert box["height"] >= 36
    assert box["y"] + box["height"] <= 844
    assert page.locator(".question .removed", has_text="-two").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    allow.click()
    page.locator(".answer code", has_text="done").wait_for()
    assert (place.folder / "a.py").read_text() == "one\n2\n"
    assert page.locator(".question").count() == 0
    assert page.locator("summary", has_text="file_read").count() == 1
    page.reload()
    page.locator(".answer code", has_text="done").wait_for()
    assert page.locator(".said").all_inner_texts() == ["change it"]
    assert page.locator(".question").count() == 0


LONG_COMMAND = "curl -d " + "x" * 3_000 + " https://ex\u0430mple.com && sh deploy.sh \u202e\u3164"


def test_all_that_will_run_is_on_the_card_before_its_buttons(visit: Any) -> None:
    page, _server, _ = visit({"tool_calls": [call("bash", command=LONG_COMMAND)]}, {"text": "Well, {{last_result}}"})
    begin(page, "go")
    card = page.locator(".question")
    card.wait_for()
    text = card.locator("pre").inner_text()
    assert text == LONG_COMMAND.encode("ascii", "backslashreplace").decode(), "as in the terminal"
    hides = "pre => pre.scrollHeight > pre.clientHeight + 1 || pre.scrollWidth > pre.clientWidth + 1"
    assert not card.locator("pre").evaluate(hides)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    allow = page.get_by_role("button", name="Allow", exact=True)
    assert card.bounding_box()["y"] >= 0, "it is read from its beginning"
    assert allow.bounding_box()["y"] > 844
    page.get_by_label("A comment for the model").fill("use the script in bin")
    page.get_by_role("button", name="Deny, because…").click()
    page.locator(".answer", has_text="They said: use the script in bin").wait_for()


def test_a_comment_beside_the_yes_to_a_plan_does_not_replace_the_plan(visit: Any, place: Place) -> None:
    page, server, _ = visit({"text": "# Plan\n\n1. Look.\n"}, {"text": "done"})
    begin(page, "/plan")
    say(page, "go")
    page.get_by_label("What to change first").fill("thanks")
    page.get_by_role("button", name="Carry out this plan").click()
    page.locator(".answer", has_text="done").wait_for()
    session = place.run("sessions", "show", session_of(page, server).id, "--json").out
    assert "approved your plan" in session
    assert "thanks" not in session


def test_parts_of_an_edit_are_chosen(visit: Any, place: Place) -> None:
    (place.folder / "a.py").write_text("one\n" + "same\n" * 20 + "two\n")
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "two", "new_string": "2"}]
    page, _server, _ = visit(
        {"tool_calls": [call("file_read", path="a.py")]},
        {"tool_calls": [call("file_edit", path="a.py", edits=edits)]},
        {"text": "{{last_result}}"},
    )
    begin(page, "change it")
    page.get_by_label("Part 2").uncheck()
    page.get_by_role("button", name="Allow (1 of 2)").click()
    page.locator(".answer", has_text="rejected these hunks").wait_for()
    assert (place.folder / "a.py").read_text() == "1\n" + "same\n" * 20 + "two\n"


MARKDOWN = """# Title

Some *soft* and **strong** and ***both***, `a*b*c`, ~~gone~~, snake_case_name and 2 * 3 * 4.
Second line \\*not soft\\*.

- one
  - inner
- [x] done

3. three
4. four

> quoted
> more

| a | b |
|---|--:|
| `x\\|y` | 2 |

```py
if x:
    <b>pass</b>
```

[good](https://example.com/a "t") https://example.com/b. <mailto:a@example.com>
[bad](javascript:alert(1)) [file](file:///etc/passwd) [own](/v1/sessions) ![pic](https://example.com/p.png)
<img src=x onerror=alert(1)> [a [b](https://example.com/c)](javascript:x)
"""


def test_an_answer_in_markdown_is_shown_as_such_and_runs_nothing(visit: Any) -> None:
    page, _server, _ = visit(
        {"text": MARKDOWN, "chunk": 7}, {"text": "*" * 20_000 + "[" * 20_000 + "`" * 9 + "_a" * 9_000}
    )
    begin(page, "go")
    page.locator(".answer table").wait_for()
    answer = page.locator(".answer:not(.unfinished)")
    answer.wait_for()

    def texts(which: str) -> list[str]:
        return [str(one) for one in answer.locator(which).all_inner_texts()]

    assert texts("h2") == ["Title"]
    assert texts("em") == ["soft", "both"]
    assert texts("strong") == ["strong", "both"]
    assert texts("p code") == ["a*b*c"]
    assert texts("del") == ["gone"]
    assert "snake_case_name and 2 * 3 * 4.\nSecond line *not soft*." in texts("p")[0]
    assert texts("ul > li") == ["one\ninner", "inner", "☑ done"]
    assert answer.locator("ol").get_attribute("start") == "3"
    assert texts("ol > li") == ["three", "four"]
    assert texts("blockquote p") == ["quoted\nmore"]
    assert texts("th") == ["a", "b"]
    assert texts("td") == ["x|y", "2"]
    assert texts("pre") == ["if x:\n    <b>pass</b>"]
    links = answer.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    example = "https://example.com"
    assert links == [f"{example}/a", f"{example}/b", "mailto:a@example.com", f"{example}/p.png", f"{example}/c"]
    assert answer.locator("img, script, b, i").count() == 0
    assert "bad (javascript:alert(1)) file (file:///etc/passwd)" in answer.inner_text()
    say(page, "and a hard one")
    page.locator(".answer", has_text="_a_a").wait_for()


@pytest.mark.full
def test_a_page_that_lost_the_network_comes_back_without_loss_or_doubles(visit: Any) -> None:
    page, _server, link = visit({"text": LONG, "chunk": 3, "delay_ms": 30}, {"text": "Second."})
    begin(page, "go")
    page.locator(".answer", has_text="quick").wait_for()
    link.cut()
    page.locator("#link.lost").wait_for()
    say(page, "while away", "Steer")
    page.wait_for_timeout(1_500)
    link.mend()
    page.locator(".answer", has_text="Second.").wait_for()
    assert page.locator("#link").inner_text() == "connected"
    assert [text.strip() for text in page.locator(".answer").all_inner_texts()] == [LONG.strip(), "Second."]
    assert page.locator(".said").all_inner_texts() == ["go", "while away"]


def test_a_turn_is_steered_and_stopped(visit: Any) -> None:
    page, _server, _ = visit({"text": LONG, "chunk": 2, "delay_ms": 50})
    begin(page, "go")
    page.locator(".answer", has_text="quick").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_text("Interrupted.").wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for()


def test_what_comes_from_a_session_is_never_html(visit: Any, place: Place) -> None:
    bad = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    name = "<b onclick=alert(1)>.txt"
    page, _server, _ = visit(
        {"text": f"{bad}\n```\n{bad}\n```\n`{bad}`", "tool_calls": [call("file_write", path=name, content=bad)]},
        {"text": "\u202egnp.exe\u200b"},
    )
    begin(page, bad)
    page.get_by_role("button", name="Allow", exact=True).wait_for()
    assert page.locator("main img, main script, main b").count() == 0
    page.get_by_role("button", name="Allow", exact=True).click()
    page.get_by_text("⟨U+202E⟩gnp.exe⟨U+200B⟩").wait_for()
    page.reload()
    page.get_by_text("⟨U+202E⟩gnp.exe⟨U+200B⟩").wait_for()
    assert page.locator("main img, main script, main b").count() == 0
    assert page.title() == "agentcli"


def test_a_client_without_a_token_is_asked_for_it(visit: Any) -> None:
    page, server, _ = visit({"text": "Hello."}, token=False)
    page.get_by_label("Token").fill("wrong-wrong-wrong-wrong")
    page.get_by_role("button", name="Connect").click()
    page.get_by_text("This server does not know that token.").wait_for()
    page.get_by_label("Token").fill(server.token)
    page.get_by_role("button", name="Connect").click()
    begin(page, "hi")
    page.locator(".answer", has_text="Hello.").wait_for()


def test_a_session_of_a_terminal_is_followed_and_taken_over(visit: Any, place: Place) -> None:
    page, _server, _ = visit({"text": "From the server."})
    model = place.script({"text": "From the terminal."}, {"text": "Second."})
    flags = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "-m", model)
    with place.start(*flags, stdin=True) as terminal:
        terminal.say("one")
        terminal.wait_for_type("result")
        page.reload()
        page.locator("#session-list button").first.click()
        page.locator(".answer", has_text="From the terminal.").wait_for()
        terminal.say("two")
        page.locator(".answer", has_text="Second.").wait_for()
        page.get_by_role("button", name="Take it over").click()
        terminal.left()
        say(page, "three")
        page.locator(".answer", has_text="From the server.").wait_for()


def test_the_page_of_a_terminal_opens_by_its_link_once(open_terminal: Open, browser: Any) -> None:
    edit = call("file_edit", path="a.py", old_string="hi", new_string="hello")
    terminal = open_terminal([{"tool_calls": [edit]}, {"text": "It is `done`."}])
    link = link_of(terminal)
    context = browser.new_context(**PHONE)
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(link)
    page.locator("#composer textarea").fill("change it")
    page.get_by_role("button", name="Send").click()
    terminal.see("› change it")
    page.get_by_role("button", name="Allow", exact=True).click()
    page.locator(".answer code", has_text="done").wait_for()
    terminal.see("Allowed on the page")
    assert "once" not in page.url
    assert page.locator("#menu").is_hidden()
    assert page.locator("#elsewhere").is_hidden()
    page.reload()
    page.locator(".answer code", has_text="done").wait_for()
    other = context.new_page()
    other.goto(link)
    other.get_by_text("This link was used already").wait_for()
    context.close()
