"""The first start without a model: a list of ways to connect one, and the first prompt, which waits."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.app.terminal import Open
from tests.conformance.replies import chat_reply
from tests.conformance.servers import chat_server, json_reply

ENTER, ESC, DOWN, UP = "\r", "\x1b", "\x1b[B", "\x1b[A"
QUESTION = r"How do you want to connect a model\?\n❯ "
pytestmark = [pytest.mark.slow, pytest.mark.sampled(1)]
widths = pytest.mark.parametrize("columns", [40, 80])


@widths
def test_what_is_typed_meanwhile_is_the_first_prompt(open_terminal: Open, columns: int) -> None:
    with chat_server([chat_reply("from the server")], models=json_reply({"data": [{"id": "small"}]})) as server:
        terminal = open_terminal(None, columns=columns, OPENAI_BASE_URL=server.url)
        terminal.see(rf"{QUESTION}Enter an API key[^›]+› Your first prompt")
        terminal.type("fix the tests")
        terminal.see(r"Enter to select\n› fix the tests")
        terminal.type(ENTER)
        terminal.see(rf"next: fix the tests\n{QUESTION}Enter an API key")
        terminal.type(f"and tell me{ENTER}")
        terminal.see(r"next: fix the tests\nnext: and tell me\n")
        terminal.type(ENTER)
        terminal.see("❯ anthropic")
        terminal.type(f"openai{ENTER}")
        terminal.see("Paste your API key for openai")
        terminal.type(f"{UP}sk-right{ENTER}")
        terminal.see("❯ Save it")
        terminal.type(DOWN + ENTER)
        terminal.see("› fix the tests[^›]+from the server")


@widths
def test_the_tour_and_failures_lead_back_to_the_list_with_the_choice_kept(open_terminal: Open, columns: int) -> None:
    terminal = open_terminal(None, columns=columns, rows=60)
    terminal.see(QUESTION)
    terminal.type(DOWN + DOWN + ENTER)
    terminal.see(r"No running model found in\s+Ollama or LM\s+Studio\.[^❯]+❯ Use Ollama or LM Studio")
    terminal.type(DOWN + ENTER)
    screen = terminal.see(r"test passes now: the\s+change is correct\.\nHow do you want[^❯]+❯ Take the tour", 30)
    assert terminal.transcript().startswith("agentcli ")
    assert screen.count("How do you want") == 1
    assert "\n› Your first prompt" in screen
    terminal.type(UP * 3 + ENTER)
    terminal.see("❯ anthropic")
    terminal.type(ESC)
    terminal.see("❯ Enter an API key")


@pytest.mark.skipif(find_spec("xllamacpp") is not None, reason="the engine is installed")
def test_without_the_engine_nothing_is_downloaded(open_terminal: Open) -> None:
    terminal = open_terminal(None)
    terminal.see(QUESTION)
    terminal.type(DOWN + ENTER)
    terminal.see(r"needs its engine first: pip install 'agentcli\[local\]'[^❯]+❯ Install the built-in model")


def test_line_by_line_a_prompt_does_not_end_the_choice(open_terminal: Open) -> None:
    terminal = open_terminal(None, "--plain")
    question = r"connect a model\? \(type a number, or Enter to cancel\):"
    terminal.see(question)
    terminal.type("fix the tests\n")
    terminal.see(rf"(?s){question} fix the tests\n.*{question}\Z")
    terminal.type("\n")
    assert terminal.exit_code() == 2


def test_other_keys_do_not_close_the_list_and_esc_clears_the_prompt_before_it_quits(open_terminal: Open) -> None:
    terminal = open_terminal(None)
    terminal.see(QUESTION)
    terminal.type("\x12\x13\x07/mo\x1b[200~pasted\x1b[201~")  # search, stash, editor, a command, a paste
    terminal.see(f"{QUESTION}Enter an API key[^›]+› /mopasted")
    terminal.type(ESC)
    terminal.see("Press Esc again to clear the input")
    terminal.type(ESC)
    terminal.see(f"{QUESTION}Enter an API key[^›]+› Your first prompt")
    terminal.settle(1.0)
    terminal.type(ESC)
    assert terminal.exit_code() == 2
    assert "agentcli local install" in terminal.text()
    assert "Traceback" not in terminal.text()


def test_a_queued_prompt_is_the_draft_of_the_next_start(open_terminal: Open) -> None:
    terminal = open_terminal(None)
    terminal.see(QUESTION)
    terminal.type(f"fix the tests{ENTER}")
    terminal.see("next: fix the tests")
    terminal.type(ESC)
    assert terminal.exit_code() == 2
    open_terminal(None).see(rf"{QUESTION}Enter an API key[^›]+› fix the tests\n")


def test_a_key_that_is_saved_although_it_was_rejected_is_asked_for_only_once(open_terminal: Open) -> None:
    with chat_server([chat_reply("from the server")], models=json_reply({}, status=401)) as server:
        terminal = open_terminal(None, OPENAI_BASE_URL=server.url)
        terminal.see(QUESTION)
        terminal.type(ENTER)
        terminal.see("❯ anthropic")
        terminal.type(f"openai{ENTER}")
        terminal.see("Paste your API key for openai")
        terminal.type(f"sk-wrong{ENTER}")
        terminal.see("This key does not work")
        terminal.type(f"sk-wrong{ENTER}")
        terminal.see("❯ Try again")
        terminal.type("\x1b[200~sk-another\x1b[201~")
        assert "sk-another" not in terminal.see("No option matches the pasted text")
        terminal.type(DOWN + ENTER)
        terminal.see("The key for openai is saved")
        terminal.see("› Ask")
        terminal.leave()
        assert terminal.exit_code() == 0
        again = open_terminal(None, OPENAI_BASE_URL=server.url)
        assert "API key" not in again.see("› Ask")
