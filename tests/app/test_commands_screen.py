"""Commands as they are seen: pickers, settings that are kept, the question for a key."""

from __future__ import annotations

import base64
import re
import stat
import tomllib
from pathlib import Path

import pytest

from tests.app.running import wait_until
from tests.app.terminal import Open, Terminal
from tests.conformance.replies import anthropic_reply, chat_reply
from tests.conformance.servers import Received, Reply, anthropic_server, chat_server, json_reply, refused_address

ANSWER = {"text": "Hello."}
pytestmark = pytest.mark.slow
WIDTHS = (40, 80, 120)
ENTER, ESC, DOWN = "\r", "\x1b", "\x1b[B"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def ready(terminal: Terminal) -> Terminal:
    terminal.see("script.jsonl")
    return terminal


def picker(terminal: Terminal) -> list[str]:
    """The rows between the picker's title and its last line."""
    rows = terminal.text().splitlines()
    end = next(number for number, row in enumerate(rows) if re.search("choices? · Enter", row))
    start = max(number for number in range(end) if not rows[number].startswith(("❯", "  ")))
    return rows[start + 1 : end]


def keyed(received: Received) -> Reply:
    """A list of models for whoever sends the right key."""
    if received.headers.get("authorization") != "Bearer sk-right":
        return json_reply({"error": {"message": "Incorrect API key provided"}}, 401)
    return json_reply({"data": [{"id": "small"}, {"id": "large"}]})


# Pickers


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("columns", "typed"), [(40, "/mod\r"), (80, "/model\r"), (120, "/model \r")])
def test_model_with_enter_alone_opens_a_list_of_what_there_is(open_terminal: Open, columns: int, typed: str) -> None:
    terminal = ready(open_terminal([ANSWER], columns=columns, OPENAI_API_KEY="sk-1"))
    for letter in typed[:-1]:
        terminal.type(letter)
    if typed != "/model\r":
        terminal.settle(0.3)
    terminal.type(ENTER)
    terminal.see("❯ ● scripted/script.jsonl")
    rows = picker(terminal)
    assert rows[1].startswith("    openai/gpt-6.1-sol")
    assert "✓ key" in rows[1]
    assert all("✓ key" in row for row in rows[1:])
    if columns > 40:
        assert re.search(r"✓ key +\S+[kM]  \$[\d.]+ in, \$[\d.]+ out", rows[1])
    assert len({row.index("✓") for row in rows[1:]}) == 1
    terminal.type("haiku-5-5")
    terminal.see("❯   anthropic/claude-haiku-5-5 +no")
    terminal.type(ESC)
    assert "❯" not in terminal.settle()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", WIDTHS)
def test_effort_mode_and_theme_are_picked_from_lists_with_a_word_each(open_terminal: Open, columns: int) -> None:
    terminal = ready(open_terminal([ANSWER], "--effort", "high", columns=columns))
    terminal.type("/effort\r")
    terminal.see("❯ ● default")
    terminal.type(DOWN + ENTER)
    terminal.see(r"Effort is low from the next\s+request on")
    terminal.type("/effort\r")
    terminal.see("❯ ● low +fast")
    terminal.type(ESC)
    terminal.settle(0.3)
    terminal.type("/permissions\r")
    terminal.see("❯ ● default +asks before")
    terminal.type(DOWN * 2 + ENTER)
    terminal.see("Mode plan: changes nothing")
    terminal.type("/theme\r")
    terminal.see("❯ ● auto +match the")
    terminal.type(DOWN + ENTER)
    terminal.see(r"Theme dark\. For this session only")


def test_a_grant_is_revoked_in_the_list(open_terminal: Open) -> None:
    terminal = ready(open_terminal([ANSWER]))
    terminal.type("/permissions allow bash(make *)\r")
    terminal.see(r"Rule added for this session: allow bash\(make \*\)")
    terminal.type("/permissions\r")
    terminal.see("❯ ● default")
    terminal.type("make")
    terminal.see(r"❯   forget bash\(make \*\)")
    terminal.type(ENTER)
    terminal.see(r"Rule removed: bash\(make \*\) will ask again\.")


def test_a_memory_file_is_edited_in_the_editor(open_terminal: Open, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf -- "- run ruff" >>"$1"\n')
    editor.chmod(0o755)
    terminal = ready(open_terminal([ANSWER], EDITOR=str(editor), VISUAL=""))
    terminal.type("/remember The port is 8143.\r")
    terminal.see("Added to")
    terminal.type("/memory edit\r")
    terminal.see("Saved /")
    (notes,) = tmp_path.rglob("memory/*/notes.md")
    assert notes.read_text() == "- The port is 8143.\n- run ruff\n"


def test_line_by_line_the_same_lists_are_answered_by_number(open_terminal: Open) -> None:
    terminal = open_terminal([ANSWER], "--plain")
    terminal.see("›")
    terminal.type("/effort\r")
    terminal.see("1 ● default")
    terminal.type("3\r")
    terminal.see("Effort is medium from the next request on")
    terminal.type("/model\r")
    terminal.see(r"per million tokens \(type a number")
    assert "● scripted/script.jsonl" in terminal.transcript()


def test_an_unknown_command_leaves_the_input_empty_and_up_brings_it_back(open_terminal: Open) -> None:
    terminal = ready(open_terminal([ANSWER]))
    terminal.type("/efort high\r")
    terminal.see(r"Unknown command /efort. Did you mean /effort\?(?s:.*)› Ask")
    terminal.type("/effort high\r")
    terminal.see("Effort is high from the next request on")
    terminal.type("\x1b[A\x1b[A")
    terminal.see("(?m)^› /efort high\n.*script.jsonl")


# Settings that are kept


def test_a_setting_is_kept_and_the_file_around_it_left_alone(open_terminal: Open, home: Path) -> None:
    file = home / "config.toml"
    file.write_text("# mine\n[terminal]  # looks\nediting_mode = 'emacs'\n\n[limits]\nmax_turns = 7 # few\n")
    file.chmod(0o640)
    terminal = ready(open_terminal([ANSWER]))
    terminal.type("/theme light keep\r")
    terminal.see("Theme light. Saved in")
    terminal.type("/config\r")
    terminal.see('theme = "light"')
    terminal.type("/effort low keep\r")
    terminal.see(r"Effort is low from the next request on\. Saved in")
    text = file.read_text()
    assert text.startswith("# mine\n[terminal]  # looks\nediting_mode = 'emacs'\ntheme = \"light\"\n")
    assert "[limits]\nmax_turns = 7 # few\n" in text
    assert tomllib.loads(text)["tokens"] == {"effort": "low"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    terminal.type("/effort default keep\r")
    terminal.see("Removed from")
    assert "effort" not in tomllib.loads(file.read_text())["tokens"]


def test_a_setting_is_not_kept_unasked_and_says_how_it_would_be(open_terminal: Open, home: Path) -> None:
    terminal = ready(open_terminal([ANSWER]))
    terminal.type("/theme dark\r")
    terminal.see("For this session only. To make it the default: /theme dark keep")
    terminal.type("/effort max\r")
    terminal.see(r"in this session only\. To make it the default: /effort\s+max\s+keep")
    assert not (home / "config.toml").exists()


def test_a_source_that_overrides_a_saved_setting_is_named(open_terminal: Open) -> None:
    terminal = ready(open_terminal([ANSWER], "--effort", "high"))
    terminal.type("/effort low keep\r")
    terminal.see(r"\s--effort\s+\(command\s+line\)\s+overrides\s+it\s+here\.")


# Keys


def test_a_key_that_no_server_could_test_is_not_said_to_be_wrong(open_terminal: Open, home: Path) -> None:
    (home / "config.toml").write_text(
        f'[providers.work]\nbase_url = "{refused_address()}"\napi_key_env = "WORK_KEY"\n', "utf-8"
    )
    terminal = ready(open_terminal([ANSWER]))
    terminal.type("/model work/small\r")
    terminal.see("Paste your API key for work")
    terminal.type("sk-any\r")
    terminal.see("work could not be reached, so the key was not tested")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_model_without_a_key_asks_for_it_and_dry_runs_it(open_terminal: Open, home: Path, columns: int) -> None:
    with chat_server([chat_reply("from the server")], models=keyed) as server:
        (home / "config.toml").write_text(
            f'[providers.work]\nbase_url = "{server.url}"\napi_key_env = "WORK_KEY"\n', "utf-8"
        )
        terminal = ready(open_terminal([ANSWER], columns=columns))
        terminal.type("/model work/small\r")
        terminal.see("Paste your API key for work")
        terminal.type("sk-wrong\r")
        terminal.see("This key does not work")
        assert "Incorrect API key" in terminal.text()
        terminal.type("sk-right")
        terminal.see(r"key: \*{8}")
        terminal.settle(1.0)
        assert not any(b"sk-right" in file.read_bytes() for file in home.rglob("*") if file.is_file())
        terminal.type(ENTER)
        terminal.see(r"work accepts the key and lists 2 mod")
        terminal.type(DOWN + ENTER)
        terminal.see("This session uses")
        terminal.type("\x1f")
        assert "sk-right" not in terminal.settle()
        terminal.type("hello\r")
        terminal.see("from the server")
    assert not (home / "credentials.json").exists()


def test_a_key_is_kept_in_a_file_and_used_the_next_time(open_terminal: Open, home: Path) -> None:
    with anthropic_server() as server:
        first = open_terminal(None, ANTHROPIC_BASE_URL=server.url)
        first.see("How do you want to connect a model")
        first.type(ENTER)
        first.see("❯ anthropic")
        first.type(ENTER)
        first.see("Paste your API key for anthropic")
        first.type("sk-ant-mine\r")
        first.see("❯ Save it")
        assert server.others[0].headers["x-api-key"] == "sk-ant-mine"
        first.type(ENTER)
        first.see("is saved in")
        first.see("claude-sonnet-5-5")
        kept = home / "credentials.json"
        wait_until(kept.exists, "the file")
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        second = open_terminal(None, ANTHROPIC_BASE_URL=server.url)
        second.see("claude-sonnet-5-5")
        assert "sk-ant-mine" not in second.transcript()
        second.type("/logout anthropic\r")
        second.see(r"Removed\s+the\s+key\s+for\s+anthropic")
        assert not kept.exists()


def test_a_provider_whose_models_no_table_has_offers_those_it_lists(open_terminal: Open, home: Path) -> None:
    with chat_server([chat_reply("large speaks")], models=keyed) as server:
        (home / "config.toml").write_text(f'[providers.openrouter]\nbase_url = "{server.url}"\n', "utf-8")
        server._routes["GET /v1/key"] = json_reply({"data": {}})
        terminal = open_terminal(None)
        terminal.see("How do you want to connect a model")
        terminal.type(ENTER)
        terminal.see("❯ anthropic")
        terminal.type("openr" + ENTER)
        terminal.see("Paste your API key for openrouter")
        terminal.type("sk-right\r")
        terminal.see("❯ Save it")
        terminal.type(ENTER)
        terminal.see("Which model do you want to use")
        terminal.type("large" + ENTER)
        terminal.see("openrouter/large: Saved in")
        terminal.type("hello\r")
        terminal.see("large speaks")
        assert "GET /v1/key" in {f"{other.method} {other.path}" for other in server.others}
    assert tomllib.loads((home / "config.toml").read_text())["provider"] == {"model": "openrouter/large"}


def test_a_model_named_on_the_command_line_asks_for_its_key_too(open_terminal: Open) -> None:
    with chat_server([chat_reply("from the server")], models=keyed) as server:
        terminal = open_terminal(None, "-m", "openai/small", OPENAI_BASE_URL=server.url)
        terminal.see("Paste your API key for openai")
        terminal.type("sk-right\r")
        terminal.see("❯ Save it")
        terminal.type(DOWN + ENTER)
        terminal.see("This session uses the key")
        terminal.type("hello\r")
        terminal.see("from the server")


def test_without_a_key_the_model_stays(open_terminal: Open) -> None:
    terminal = ready(open_terminal([ANSWER]))
    terminal.type("/model groq/llama\r")
    terminal.see("Paste your API key for groq")
    terminal.type(ESC)
    terminal.see("groq needs an API key. Set GROQ_API_KEY")
    terminal.type("hello\r")
    terminal.see("Hello.")


# Conversations


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("columns", "how"), [(40, "/resume"), (80, "-r"), (120, "--resume")])
def test_conversations_are_listed_with_age_title_and_last_prompt(open_terminal: Open, columns: int, how: str) -> None:
    first = open_terminal(
        [ANSWER, ANSWER, ANSWER], "Hello!\n\nMend the parser, please, so that it reads long lines too"
    )
    first.see("Hello\\.")
    first.type("And the tests?\r")
    first.see("tests.\n\nHello")
    first.rest()
    first.type("/clear\r")
    first.see("New session")
    first.type("say something\r")
    first.see("something\n\nHello")
    first.rest()
    first.type("/rename talk\r")
    first.see("Renamed this session to talk")
    first.leave()
    assert first.exit_code() == 0
    second = open_terminal([ANSWER], *([how] if how != "/resume" else []), columns=columns)
    if how == "/resume":
        ready(second).type("/resume\r")
    second.see("❯ just now")
    named, other, one_shots, everywhere = picker(second)  # the marked row has a second one only if it was cut
    assert "With one-shots" in one_shots
    assert "All directories" in everywhere
    assert named.startswith("❯ just now    talk")
    assert other.startswith("  just now    Mend the parser")
    assert "say something" in named
    if columns > 40:
        assert "so that it reads…" in other
        assert "→ And the" in other
    second.type("parser" + ENTER)
    second.see("And the tests")


# Changes


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", WIDTHS)
def test_diff_is_coloured(open_terminal: Open, columns: int) -> None:
    change = {"name": "file_edit", "input": {"path": "a.py", "old_string": "hi", "new_string": "ho"}}
    replies = [{"tool_calls": [change]}, {"text": "Done."}]
    terminal = ready(open_terminal(replies, "--permission-mode", "acceptEdits", columns=columns))
    terminal.type("go\r")
    terminal.see("Done\\.")
    terminal.rest()
    terminal.type("/diff\r")
    terminal.see(r"a\.py  \+1 -1")
    rows = terminal.settle().splitlines()
    at = max(number for number, row in enumerate(rows) if row.startswith("a.py  +1 -1"))
    removed, added = rows[at + 1 : at + 3]
    assert 'print("hi")' in removed
    assert 'print("ho")' in added
    colours = [terminal.screen.buffer[at + 1 + line][removed.index("print")] for line in (0, 1)]
    assert (colours[0].fg, colours[0].bg) != (colours[1].fg, colours[1].bg)
    assert "@@" not in terminal.text()


# Help


@pytest.mark.parametrize("columns", WIDTHS)
def test_help_is_in_columns_under_headings(open_terminal: Open, columns: int) -> None:
    terminal = ready(open_terminal([ANSWER], columns=columns))
    terminal.type("/help\r")
    short = terminal.see(r"/help commands explains them all").splitlines()
    assert len(short) <= 37
    assert any(row.startswith("Permissions   /permissions /sandbox") for row in short)
    terminal.type("/help commands\r")
    terminal.see("fresh eyes")  # near the end of them
    rows = terminal.transcript().splitlines()
    model, rename = (next(row for row in rows if row.startswith(f"  /{name} ")) for name in ("model", "rename"))
    if columns == 40:  # the meaning stands below
        at = rows.index("  /model [MODEL]")
        assert rows[at + 1 : at + 3] == ["    show the models, or switch to", "    another one"]
    else:
        assert model.index("[MODEL]") == rename.index("NAME") == 18
        assert model.index("show the models") == rename.index("rename this")
    assert all(any(row.startswith(f"  /{name}") for row in rows) for name in ("clear", "resume", "help"))
    assert {"Model", "Conversation", "Project", "Permissions", "Jobs", "Program"} <= set(rows)
    terminal.type("/help effort\r")
    terminal.see("/effort LEVEL keep")


def test_lists_that_are_cut_say_so_and_show_a_model_s_window_and_price_at_40_columns(open_terminal: Open) -> None:
    terminal = ready(open_terminal([ANSWER], columns=40, ANTHROPIC_API_KEY="sk-ant-1"))
    terminal.type("/")
    terminal.see(r"/cache.*\n  \d\d more · ↓ or type to narrow\n")
    terminal.type("\x15/model\r")
    terminal.see("choices · Enter")
    terminal.type("haiku-5-5")
    terminal.see(r"❯ +anthropic/claude-haiku-5-5 .*\n    ✓ key +1M +\$0\.1 in, \$0\.5 out\n")


def test_a_resumed_session_says_which_model_answers_before_anything_is_sent(open_terminal: Open, home: Path) -> None:
    with anthropic_server([anthropic_reply("Hello.")]) as server:
        keys = {"ANTHROPIC_API_KEY": "sk-ant-1", "ANTHROPIC_BASE_URL": server.url}
        first = open_terminal(None, "-m", "anthropic/claude-haiku-5-5", "-p", "hi", **keys)
        first.see("Hello")
        assert first.exit_code() == 0
        for how in ("-c", "-r"):
            kept = open_terminal(None, how, **keys)
            if how == "-r":
                kept.see("❯ just now")
                kept.type(ENTER)
            kept.see(r"Resuming with anthropic/claude-haiku-5-5(?s:.*) · claude-haiku-5-5")
            if how == "-c":
                refused = open_terminal(None, how, **keys)
                assert "Resuming with" not in refused.see("is open in another agentcli")
            kept.leave()
            assert kept.exit_code() == 0
        other = open_terminal(None, "-c", OPENAI_API_KEY="sk-1")
        shown = " ".join(other.see(r"agentcli login\s+anthropic").split())
        assert re.search(r"openai/\S+ answers now\. anthropic/claude-haiku-5-5, which this session used, cannot", shown)
        assert len(server.requests) == 1


def test_trust_shows_the_project_s_files_and_applies_them_in_the_running_session(
    open_terminal: Open, tmp_path: Path
) -> None:
    own = tmp_path / "project/.agentcli"
    (own / "commands").mkdir(parents=True)
    (own / "commands/hello.md").write_text("Say hello to $ARGUMENTS")
    settings = '[[hooks.Stop]]\nhooks = [{type = "command", command = "touch hooked"}]\n'
    (own / "config.toml").write_text(settings)
    terminal = open_terminal([{"text": "First answer."}, {"text": "Second answer."}])
    terminal.see(r"are\s+not\s+trusted\s+and\s+not\s+used\.(?s:.*)/trust")
    terminal.type("go\r")
    terminal.see("First answer")
    terminal.rest()
    for keys, outcome in (("\r", "Nothing was trusted"), ("\x1b[B\r", "changed in the meantime")):
        terminal.type("/trust\r")
        shown = terminal.see(r'(?s)command = "touch hooked".*files:.*hello\.md.*\n❯ No, not now')
        assert "Trusting them adds:\n  commands: /hello\n  hooks: Stop runs `touch hooked`\n" in shown
        (own / "config.toml").write_text(f"# {keys!r}\n{settings}")
        terminal.type(keys)
        terminal.see(outcome)
    terminal.type("/hello you\r")
    terminal.see(r"This project defines /hello, but is not trusted\.")
    terminal.type("/trust\r")
    terminal.see("❯ No, not now")
    terminal.type("\x1b[B\r")
    terminal.see("This session uses them now")
    assert not (tmp_path / "project/hooked").exists()
    terminal.type("/hello you\r")
    terminal.see(r"/hello you\n\n\w+ answer")
    terminal.rest()
    assert (tmp_path / "project/hooked").exists()
    terminal.type("/undo\r/help hello\r")  # the conversation and the commands are those of one session
    terminal.see("/hello")
    terminal.leave()
    assert terminal.exit_code() == 0
    again = open_terminal([{"text": "Third answer."}], "-c")
    screen = again.see("› /hello you|Say hello to you")
    assert "› go" in screen
    assert "not trusted" not in screen


def test_line_by_line_a_project_is_trusted_too(open_terminal: Open, tmp_path: Path) -> None:
    commands = tmp_path / "project/.agentcli/commands"
    commands.mkdir(parents=True)
    (commands / "hello.md").write_text("Say hello")
    terminal = open_terminal([ANSWER], "--plain")
    terminal.see("\n›$")
    terminal.type("/trust\n")
    terminal.see(r"commands: /hello(?s:.*)type a number")
    terminal.type("2\n")
    terminal.see("This session uses them now")
    terminal.type("/hello\n")
    terminal.see(str(ANSWER["text"]))


def test_an_image_outside_the_workspace_is_attached_by_its_name(open_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "seen.png").write_bytes(
        base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk")
    )
    terminal = ready(open_terminal([ANSWER]))
    terminal.type(f"what is @{tmp_path}/seen.png.\r")
    terminal.see(r"› what is \[Image #1")
    assert "not attached" not in terminal.see(str(ANSWER["text"]))
