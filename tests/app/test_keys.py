"""Keys of providers: kept by `agentcli login`, found by every run, seen nowhere."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.app.running import Place
from tests.conformance.replies import chat_chunk, chat_reply, chat_sse
from tests.conformance.servers import LoopbackServer, Received, Reply, chat_server, json_reply

pytestmark = pytest.mark.slow  # each test starts the program

KEY = "sk-right-and-long"
ASK = ("-m", "openai/test-model", "-p", "go")
KEYRING = """
import json, os
from keyring.backend import KeyringBackend

FILE = os.environ["TEST_KEYRING"]

class Keyring(KeyringBackend):
    priority = 5

    def _read(self):
        try:
            return json.load(open(FILE))
        except FileNotFoundError:
            return {}

    def get_password(self, service, name):
        return self._read().get(f"{service} {name}")

    def set_password(self, service, name, value):
        json.dump(self._read() | {f"{service} {name}": value}, open(FILE, "w"))

    def delete_password(self, service, name):
        json.dump({k: v for k, v in self._read().items() if k != f"{service} {name}"}, open(FILE, "w"))
"""


def listed(received: Received) -> Reply:
    if received.headers.get("authorization") != f"Bearer {KEY}":
        return json_reply({"error": {"message": f"Incorrect API key: {received.headers['authorization'][7:]}"}}, 401)
    return json_reply({"data": [{"id": "test-model"}, {"id": "other"}]})


def at(server: LoopbackServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": server.url}


def test_a_key_runs_as_a_dry_run_kept_and_used(place: Place) -> None:
    with chat_server([chat_reply("Hi.")], models=listed) as server:
        ran = place.run("login", "openai", stdin=f"{KEY}\n", env=at(server))
        assert (ran.code, ran.err) == (0, "")
        file = place.home / "credentials.json"
        assert ran.out.startswith("openai accepts the key and lists 2 models.\nThe key for openai is saved in ")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert place.run(*ASK, env=at(server)).out == "Hi.\n"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    for command in (("login",), ("doctor",), ("config", "show"), ("-m", place.script(), "-p", "/config")):
        shown = place.run(*command)
        assert f"saved in {file}" in shown.out
        assert KEY not in shown.out + shown.err
    rows = json.loads(place.run("login", "--json").out)
    assert {"provider": "openai", "variable": "OPENAI_API_KEY", "place": f"saved in {file}"} in rows
    assert place.run("login", "openai", "--remove").out == f"Removed the key for openai (saved in {file}).\n"
    assert not file.exists()
    assert place.run("login", "openai", "--remove").code == 2
    assert place.run("models", "default").code == 2


def test_a_key_alone_chooses_the_model(place: Place) -> None:
    place.run("login", "deepseek", "--untried", stdin=KEY)
    assert place.run("models", "default").out == "deepseek/deepseek-v4-pro\n"
    assert place.run("models", "default", env={"OPENAI_API_KEY": "sk-1"}).out.startswith("openai/")


def test_a_key_that_is_refused_is_not_kept_nor_shown(place: Place) -> None:
    with chat_server(models=listed) as server:
        ran = place.run("login", "openai", stdin="sk-mistyped\n", env=at(server))
    assert ran.code == 1
    assert "Incorrect API key: [masked] (not saved" in ran.err
    assert not (place.home / "credentials.json").exists()


def test_the_environment_wins(place: Place) -> None:
    place.run("login", "openai", "--untried", stdin="sk-kept")
    for helper in (False, True):
        if helper:
            helped(place, "false")
        with chat_server([chat_reply("Hi.")]) as server:
            assert place.run(*ASK, env={**at(server), "OPENAI_API_KEY": "sk-given"}).out == "Hi.\n"
            assert server.requests[0].headers["authorization"] == "Bearer sk-given"
    said = place.run("login", "openai", "--untried", stdin="sk-new", env={"OPENAI_API_KEY": "sk-given"})
    assert "OPENAI_API_KEY in the environment overrides it" in said.out
    assert "OPENAI_API_KEY in the environment" in place.run("doctor", env={"OPENAI_API_KEY": "sk-given"}).out


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_that_others_can_read_is_not_used(place: Place, mode: int) -> None:
    place.run("login", "openai", "--untried", stdin=KEY)
    (place.home / "credentials.json").chmod(mode)
    ran = place.run(*ASK)
    assert ran.code == 2
    assert f"credentials.json: contains keys but is not private to you (mode {mode:o})" in ran.err
    assert place.run("config", "show").code == 2
    assert '"limits"' in place.run("config", "show", "--json").out
    assert KEY not in ran.err
    assert "chmod 600" in place.run("doctor").out
    assert place.run("-m", place.script({"text": "Hi."}), "-p", "no key needed").out == "Hi.\n"


def test_a_keyring_is_used_where_there_is_one(place: Place, tmp_path: Path) -> None:
    (tmp_path / "test_keyring.py").write_text(KEYRING)
    env = {
        "PYTHON_KEYRING_BACKEND": "test_keyring.Keyring",
        "PYTHONPATH": str(tmp_path),
        "TEST_KEYRING": str(tmp_path / "keyring.json"),
    }
    ran = place.run("login", "openai", "--untried", stdin=KEY, env=env)
    assert ran.out.startswith("The key for openai is saved in the keyring")
    assert json.loads((tmp_path / "keyring.json").read_text()) == {"agentcli OPENAI_API_KEY": KEY}
    assert KEY not in (place.home / "credentials.json").read_text()
    with chat_server([chat_reply("Hi.")]) as server:
        assert place.run(*ASK, env={**env, **at(server)}).out == "Hi.\n"
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        without = place.run(*ASK, env=at(server))
    assert without.code == 1  # the keyring of another machine
    assert "No key for openai" in without.err
    assert place.run("login", "openai", "--remove", env=env).code == 0
    assert json.loads((tmp_path / "keyring.json").read_text()) == {}


def test_a_kept_key_is_masked_like_any_other_secret(place: Place) -> None:
    place.run("login", "tavily", "--untried", stdin="not-of-a-known-form-17")
    model = place.script(
        {"tool_calls": [{"name": "bash", "input": {"command": "echo not-of-a-known-form-17"}}]},
        {"text": "{{last_result}}"},
    )
    place.run("login", "openai", "--untried", stdin=KEY)
    ran = place.run("-m", model, "-p", "go", "--permission-mode", "bypassPermissions")
    assert "not-of-a-known-form-17" not in ran.out


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("login", "openai"), "", "pipe it into agentcli login openai"),
        (("login", "openai"), "\n", "pipe it into agentcli login openai"),
        (("login", "ollama"), None, "anthropic, openai, openrouter, deepseek, groq"),
        (
            ("-p", "/model groq/llama"),
            None,
            "groq needs an API key. Set GROQ_API_KEY, or save one with agentcli login groq",
        ),
    ],
)
def test_no_key_is_an_error_of_usage_that_says_where_to_have_one(
    place: Place, arguments: tuple[str, ...], stdin: str | None, says: str
) -> None:
    ran = place.run(*arguments, *(("-m", place.script()) if "-p" in arguments else ()), stdin=stdin)
    assert ran.code == 2
    assert says in ran.err


def test_a_server_of_the_settings_has_its_key_kept_too(place: Place) -> None:
    with chat_server([chat_reply("Hi.")], models=listed) as server:
        place.home.mkdir(exist_ok=True)
        (place.home / "config.toml").write_text(
            f'[providers.work]\nbase_url = "{server.url}"\napi_key_env = "WORK_KEY"\n'
        )
        assert "work accepts the key" in place.run("login", "work", stdin=KEY).out
        assert place.run("-m", "work/test-model", "-p", "go").out == "Hi.\n"


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 1), (404, 0)])
def test_where_anybody_sees_the_models_the_key_is_shown_to_another_path(place: Place, status: int, code: int) -> None:
    with chat_server() as server:
        server._routes["GET /v1/key"] = json_reply({"data": {}}, status)
        place.home.mkdir()
        (place.home / "config.toml").write_text(f'[providers.openrouter]\nbase_url = "{server.url}"\n')
        assert place.run("login", "openrouter", stdin=KEY).code == code


def test_doctor_names_three_ways_to_a_model_and_config_has_no_empty_headings(place: Place) -> None:
    ran = place.run("doctor")
    assert ran.code == 1
    assert all(way in ran.out for way in ("agentcli login", "Ollama", "agentcli local install"))
    assert "✗ model         groq needs an API key" in place.run("doctor", env={"AGENTCLI_MODEL": "groq/llama"}).out
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(
        '[terminal]\ntheme = "dark"\n[local]\nlinger = 300\n'
        '[providers.a]\nbase_url = "http://a"\nheaders = { x = "1" }\n'
    )
    shown = (
        '[providers.a]\nbase_url = "http://a"\n\n[providers.a.headers]\nx = "[masked]"\n\n'
        '[retry]\ninitial_delay = 0.01\n\n[terminal]\ntheme = "dark"\n'
    )
    assert place.run("config", "show").out == shown
    assert place.run("-m", place.script(), "-p", "/config").out.endswith(shown)


# A command that has the key


def helped(place: Place, command: str, provider: str = "openai") -> None:
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(f"[providers.{provider}]\napi_key_helper = {json.dumps(command)}\n")


def program(place: Place, text: str) -> Path:
    file = place.home.parent / "print key.sh"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_a_command_gives_the_key(place: Place) -> None:
    file = program(place, f'echo x >>"$0.runs"; [ "$1" = "a b;c" ] && echo "  {KEY}  "')
    helped(place, f"'{file}' 'a b;c'")
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "file_list", "arguments": "{}"}}
    asks = Reply(chat_sse([chat_chunk({"tool_calls": [call]}), chat_chunk({}, "tool_calls")]))
    with chat_server([asks, chat_reply("Hi.")], models=listed) as server:
        logged = {"AGENTCLI_OBSERVABILITY_LOG_LEVEL": "debug"}
        assert place.run(*ASK, env={**at(server), **logged}).out == "Hi.\n"
        assert [r.headers["authorization"] for r in server.requests] == [f"Bearer {KEY}"] * 2
        assert Path(f"{file}.runs").read_text() == "x\n"  # once for both
        assert place.run("models", "check", "openai/test-model", env=at(server)).code == 0
        assert place.run("models", "default").out.startswith("openai/")
    for command in (("login",), ("doctor",)):
        assert "from providers.openai.api_key_helper" in place.run(*command).out
    assert KEY not in (place.home / "state/logs/agentcli.log").read_text()


def test_a_command_runs_again_when_its_key_is_refused(place: Place) -> None:
    file = program(place, 'echo x >>"$0.runs"; echo "sk-number-$(wc -l <"$0.runs" | tr -d " ")"')
    helped(place, f"'{file}'")
    refused = json_reply({"error": {"message": "Incorrect API key"}}, 401)
    with chat_server([refused, chat_reply("Hi.")]) as server:
        assert place.run(*ASK, env=at(server)).out == "Hi.\n"
        keys = [r.headers["authorization"] for r in server.requests]
        assert keys == ["Bearer sk-number-1", "Bearer sk-number-2"]


def test_a_key_that_is_the_same_again_is_not_retried(place: Place) -> None:
    helped(place, "echo sk-wrong-and-long")
    refused = json_reply({"error": {"message": "Incorrect API key: sk-wrong-and-long"}}, 401)
    with chat_server([refused] * 3) as server:
        ran = place.run(*ASK, env=at(server))
        assert ran.code == 1
        assert "Incorrect API key: [masked]" in ran.err
        assert len(server.requests) == 1


def test_white_space_around_a_key_is_not_a_part_of_it(place: Place) -> None:
    for key in (f"{KEY}\r\n", f" {KEY} ", f"{KEY}\t"):
        with chat_server([chat_reply("Hi.")]) as server:
            assert place.run(*ASK, env=at(server) | {"OPENAI_API_KEY": key}).out == "Hi.\n"
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "OPENAI_API_KEY" in place.run(*ASK, env={"OPENAI_API_KEY": " \n"}).err  # which is none


def test_a_key_that_cannot_be_sent_names_its_variable_and_is_not_retried(place: Place) -> None:
    with chat_server() as server:
        ran = place.run(*ASK, env=at(server) | {"OPENAI_API_KEY": "sk-a\nsk-b"})
        assert server.requests == []
    assert ran.code != 0
    assert "OPENAI_API_KEY: the key contains a character that HTTP headers do not allow" in ran.err
    assert "retry" not in ran.err
    assert "sk-" not in ran.err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("exit-with 3", "could not start the command (No such file or directory)"),
        ("sh -c 'echo sk-told-to-nobody; exit 3'", "failed with exit code 3. Run it yourself"),
        ("true", "printed no key"),
        ("printf 'sk-a\\nsk-b'", "a character that HTTP headers do not allow"),
    ],
)
def test_a_command_that_fails_is_an_error_that_says_how(place: Place, command: str, told: str) -> None:
    helped(place, command)
    with chat_server() as server:
        ran = place.run(*ASK, env=at(server))
        assert server.requests == []
    assert ran.code == 1
    assert told in ran.err
    assert "sk-" not in ran.err


def test_a_command_that_cannot_be_read_is_an_error_of_the_settings(place: Place) -> None:
    helped(place, "echo 'open")
    ran = place.run(*ASK)
    assert ran.code == 2
    assert "config.toml, line 2: providers.openai.api_key_helper: this is not a valid command" in ran.err


def test_a_project_has_no_command_run(place: Place) -> None:
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli/config.toml").write_text('[providers.openai]\napi_key_helper = "touch ran"\n')
    ran = place.run(*ASK, "--trust")
    assert "[providers] cannot be set by a project" in ran.err
    assert not (place.folder / "ran").exists()


def test_a_command_s_key_is_masked_like_any_other_secret(place: Place) -> None:
    helped(place, "echo not-of-a-known-form-17")
    arguments = json.dumps({"command": "echo it is not-of-a-known-form-17"})
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "bash", "arguments": arguments}}
    asks = Reply(chat_sse([chat_chunk({"tool_calls": [call]}), chat_chunk({}, "tool_calls")]))
    with chat_server([asks, chat_reply("Hi.")]) as server:
        ran = place.run(*ASK, "--permission-mode", "bypassPermissions", env=at(server))
        assert ran.out == "Hi.\n"
        (result,) = [m["content"] for m in server.requests[1].json["messages"] if m["role"] == "tool"]
    assert "it is" in result
    assert "not-of-a-known-form-17" not in result
