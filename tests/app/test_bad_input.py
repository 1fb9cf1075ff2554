"""What people and servers get wrong: a clear message, the right exit code, nothing lost."""

from __future__ import annotations

import pytest

from tests.app.running import Place, Ran
from tests.conformance.replies import anthropic_reply
from tests.conformance.servers import (
    LoopbackServer,
    Reply,
    anthropic_server,
    chat_server,
    html,
    json_reply,
    refused_address,
)

pytestmark = pytest.mark.slow  # each test starts the program

UUID = "12345678-1234-4234-8234-123456789abc"
CLAUDE = ("-m", "anthropic/claude-sonnet-5-5")


def refused(ran: Ran, code: int, *says: str) -> None:
    """It ended with this code, told why in words, and printed nothing else."""
    assert ran.code == code, ran
    for words in says:
        assert words in ran.err, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.startswith("agentcli: ")


# Flags and settings: exit code 2.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", "x", "--modle", "a/b"], "--modle"),
        (["-p", "x", "--output-format", "xml"], "stream-json"),
        (["-p", "x", "--permission-mode", "sometimes"], "bypassPermissions"),
        (["-p", "x", "--max-turns", "many"], "--max-turns"),
        (["-p", "x", "--max-turns", "0"], "limits.max_turns"),
        (["-p", "x", "-m", "claude"], "PROVIDER/MODEL"),
        (["-p", "x", "-m", "nowhere/model"], "[providers.nowhere]"),
        (["-p", "x", "-m", "scripted/missing.jsonl"], "missing.jsonl"),
        (["-p", "x", "-m", "scripted/s", "--tools", "bash,grpe"], "grpe"),
        (["-p", "x", "-m", "scripted/s", "--allow", "no rule ("], "TOOL(pattern)"),
        (["-p", "x", "-m", "scripted/s", "--add-dir", "missing"], "missing"),
        (["-p", "x", "-C", "missing"], "missing"),
        (["-p", "x", "--settings", "missing.toml"], "missing.toml"),
        (["-p", "x", "--system-prompt-file", "missing.md"], "missing.md"),
        (["-p", "x", "--session-id", "seven"], "UUID"),
        (["-p", "x", "--continue"], "continue"),
        (["-p", "x", "--continue", "--resume", "y"], "either --continue or --resume, not both"),
        (["-p", "x", "--resume"], "sessions list"),
        (["-p", "x", "--continue", "--session-id", UUID], "--fork-session"),
        (["-p", "x", "--resume", "y", "--session-id", UUID], "--fork-session"),
        (["-p", "x", "--system-prompt", "a", "--system-prompt-file", "s"], "either --system-prompt or"),
        (["-p", "x", "--append-system-prompt", "", "--append-system-prompt-file", "s"], "Use either --append-system"),
        (["-p", "x", "--fork-session"], "--resume"),
        (["-p", "x", "--no-session", "--continue"], "--no-session"),
        (["-p", "x", "--input-format", "stream-json"], "--output-format stream-json"),
        (["-p"], "There is no prompt"),
        (["-p", "  "], "There is no prompt"),
        ([], "There is no prompt"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_do(place: Place, arguments: list[str], says: str) -> None:
    (place.folder / "s").write_text('{"text": "ok"}\n')
    ran = place.run(*arguments, env={"AGENTCLI_MODEL": "scripted/s"})
    assert ran.code == (1 if "missing.jsonl" in says else 2)
    refused(ran, ran.code, says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--plain", "eval"], "agentcli eval"),
        (["-m", "scripted/s", "eval"], "agentcli eval"),
        (["--output-format", "json", "--", "eval"], "agentcli eval"),
        (["--plain", "sessions", "list"], "agentcli sessions"),
        (["sesions"], "Did you mean `agentcli sessions`?"),
        (["sesions", "list"], "Did you mean `agentcli sessions`?"),
        (["Undo"], "Did you mean `agentcli undo`?"),
        (["usgae"], "Did you mean `agentcli usage`?"),
        (["-m", "scripted/s", "modles"], "Did you mean `agentcli models`?"),
        (["doctorr", "--json"], "Did you mean `agentcli doctor`?"),
    ],
)
def test_the_name_of_a_command_is_never_a_prompt(place: Place, arguments: list[str], says: str) -> None:
    (place.folder / "s").write_text('{"text": "ok"}\n')
    for stdin in (None, "piped"):
        ran = place.run(*arguments, stdin=stdin, env={"AGENTCLI_MODEL": "scripted/s"})
        refused(ran, 2, says)


@pytest.mark.parametrize(
    "arguments", [["-p", "usage"], ["undo the last edit"], ["-p", "sesions"], ["tool s"], ["sections"], ["explain"]]
)
def test_text_that_only_resembles_a_command_is_a_prompt(place: Place, arguments: list[str]) -> None:
    (place.folder / "s").write_text('{"text": "ok"}\n')
    ran = place.run(*arguments, env={"AGENTCLI_MODEL": "scripted/s"})
    assert (ran.code, ran.out) == (0, "ok\n")


def test_an_id_that_no_session_has_is_refused(place: Place) -> None:
    refused(place.run("-p", "x", "-m", place.script({"text": "ok"}), "--resume", "nope"), 1, "nope", "sessions list")


def test_without_a_model_the_ways_to_get_one_are_named(place: Place) -> None:
    ran = place.run("-p", "x")
    refused(ran, 2, "ANTHROPIC_API_KEY", "ollama/MODEL", "agentcli local install", "agentcli demo")


def test_a_broken_config_file_is_named_with_line_and_key(place: Place) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_text("[limits]\nmax_turns = 3\nmax_turn = 4\n")
    refused(place.run("-p", "x"), 2, f"{place.home / 'config.toml'}, line 3: limits.max_turn: unknown setting")
    (place.home / "config.toml").write_text("[limits\n")
    refused(place.run("-p", "x"), 2, f"{place.home / 'config.toml'}, line 1")


def test_a_wrong_variable_is_named(place: Place) -> None:
    refused(place.run("-p", "x", env={"AGENTCLI_RETRY_MAX": "lots"}), 2, "AGENTCLI_RETRY_MAX")


def test_a_broken_script_names_its_line(place: Place) -> None:
    (place.folder / "s").write_text('{"text": "ok"}\n{"txt": "ok"}\n')
    refused(place.run("-p", "x", "-m", "scripted/s"), 1, "line 2", "txt")


def test_settings_of_an_untrusted_project_are_passed_over_and_that_is_reported(place: Place) -> None:
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli" / "config.toml").write_text("[limits]\nmax_turns = 1\n")
    replies = ({"tool_calls": [{"name": "think", "input": {"thought": "Hm."}}]}, {"text": "done"})
    ran = place.run("-p", "x", "-m", place.script(*replies))
    assert (ran.code, ran.out) == (0, "done\n")
    assert "config trust" in ran.err
    assert place.run("-p", "x", "-m", place.script(*replies), "--trust").code == 53


def test_a_prompt_with_a_name_that_no_file_can_have_is_only_text(place: Place) -> None:
    ran = place.run(
        "-p", f"what is @{'a' * 300} and @\ud800?".encode("utf-8", "replace"), "-m", place.script({"text": "ok"})
    )
    assert (ran.code, ran.out) == (0, "ok\n")


# Providers: exit code 1.


def asked(place: Place, server: LoopbackServer, *arguments: str) -> Ran:
    env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "a-secret-key", "AGENTCLI_RETRY_MAX": "1"}
    return place.run(*CLAUDE, "-p", "go", *arguments, env=env)


def error(kind: str, message: str, status: int) -> Reply:
    return json_reply({"type": "error", "error": {"type": kind, "message": message}}, status)


def test_a_wrong_key_is_reported_and_the_key_is_not(place: Place) -> None:
    with anthropic_server([error("authentication_error", "invalid x-api-key", 401)]) as server:
        ran = asked(place, server)
        assert len(server.requests) == 1
    refused(ran, 1, "invalid x-api-key", "key")
    assert "a-secret-key" not in ran.err


def test_a_missing_key_names_the_variable(place: Place) -> None:
    refused(place.run(*CLAUDE, "-p", "go", env={"ANTHROPIC_BASE_URL": refused_address()}), 1, "ANTHROPIC_API_KEY")


def test_a_model_that_does_not_exist_says_where_to_find_others(place: Place) -> None:
    with anthropic_server([error("not_found_error", "model: claude-9", 404)]) as server:
        refused(asked(place, server), 1, "Anthropic has no model claude-9, asked at http", "agentcli models list")


@pytest.mark.parametrize(
    ("name", "id"), [("opus", "claude-opus-5-5"), ("claude-haiku-4-5-20251001", "claude-haiku-4-5")]
)
def test_a_model_can_be_named_without_its_provider(place: Place, name: str, id: str) -> None:
    with anthropic_server([anthropic_reply("Hi.")]) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "key"}
        assert place.run("-p", "go", "-m", name, env=env).out == "Hi.\n"
        assert server.requests[0].json["model"] == id


def test_a_server_that_is_down_is_reported_with_its_address(place: Place) -> None:
    address = refused_address()
    env = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "k", "AGENTCLI_RETRY_MAX": "1"}
    ran = place.run(*CLAUDE, "-p", "go", env=env)
    assert ran.code == 1
    assert address.removeprefix("http://") in ran.err
    assert "Retrying in" in ran.err


def test_a_page_in_place_of_the_api_is_reported_as_one(place: Place) -> None:
    with anthropic_server([html(200), html(200)]) as server:
        ran = asked(place, server)
    assert ran.code == 1
    assert ran.out == ""
    assert "answered with text/html" in ran.err


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_stream_that_is_cut_twice_keeps_what_was_reported(place: Place, format: str) -> None:
    whole = anthropic_reply("All is well with it.")
    cut = whole.but(breaks_after=whole.body.index(b"th it."))
    with anthropic_server([cut, cut, anthropic_reply("Going on.")]) as server:
        ran = asked(place, server, "--output-format", format)
        assert ran.code == 1
        assert len(server.requests) == 2
        again = asked(place, server, "--continue")
        assert again.out == "Going on.\n"
        messages = server.requests[2].json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"][0]["text"].startswith("All is well")


def test_a_reply_that_makes_no_sense_is_reported(place: Place) -> None:
    broken = Reply(b"event: message_start\ndata: {half\n\n")
    with anthropic_server([broken, broken]) as server:
        ran = asked(place, server)
    assert ran.code == 1
    assert "Traceback" not in ran.err


def test_a_prompt_larger_than_the_window_is_reported_and_withdrawn(place: Place) -> None:
    too_long = error("invalid_request_error", "prompt is too long: 1000001 tokens > 1000000 maximum", 400)
    with anthropic_server([too_long, anthropic_reply("Better.")]) as server:
        refused(asked(place, server), 1, "prompt is too long", "larger window")
        assert asked(place, server, "--continue").out == "Better.\n"
        assert len(server.requests[1].json["messages"]) == 1


def test_a_custom_server_is_a_table_in_the_settings(place: Place) -> None:
    place.home.mkdir()
    with chat_server([json_reply({"error": {"message": "no such model"}}, 404)]) as server:
        (place.home / "config.toml").write_text(f'[providers.mine]\nbase_url = "{server.url}"\n')
        ran = place.run("-m", "mine/test-model", "-p", "go")
        assert server.requests[0].json["model"] == "test-model"
    refused(ran, 1, "no such model")


def test_a_file_that_cannot_be_attached_is_reported_to_the_person_and_the_model(place: Place) -> None:
    (place.folder / "data.bin").write_bytes(b"\0\1")
    (place.folder / "AGENTS.md").write_text("rule one\n" + "more\n" * 10_000)
    ran = place.run("-m", place.script({"text": "ok"}), "-p", "see @data.bin")
    assert "data.bin was not attached: data.bin is a binary file" in ran.err
    assert "The model gets only the beginning of" in ran.err
    shown = place.run("sessions", "show", "0", "--json").out
    assert "[not attached: data.bin is a binary file" in shown
    assert "rule one" in shown
    assert "KiB are missing" in shown
