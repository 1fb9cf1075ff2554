"""A wrong setting names its source, its key and (in TOML) its line, and the values there are."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from tests.app.running import Place

pytestmark = pytest.mark.slow  # each test starts the program

SAID = {"text": "Hello."}


WORK = '[providers.work]\nbase_url = "http://127.0.0.1:9"\n'
# What is written, the line and key that are wrong, and words of the message.
WRONG: list[tuple[str, int, str, str]] = [
    ('[permissions]\nmode = "yolo"\n', 2, "permissions.mode", "choose one of default, acceptEdits, plan, "),
    ('[tools]\nonly = ["bash", 3]\n', 2, "tools.only", "(item 2 of the list)"),
    ("[retry]\n\nmxa = 1\n", 3, "retry.mxa", "(did you mean max?); choose one of max, initial_delay."),
    ("[retires]\nmax = 1\n", 1, "retires", "(did you mean retry?); choose one of provider, providers, tokens, "),
    ('[providers.work]\napi_key_env = "K"\n', 1, "providers.work", "Without it, choose one of anthropic, "),
    ('[providers.opnai]\napi_key_env = "K"\n', 1, "providers.opnai", "(did you mean openai?)"),
    (f'{WORK}quirks = {{ system_rol = "x" }}\n', 3, "providers.work.quirks.system_rol", "(did you mean system_role?)"),
    (f"{WORK}[providers.work.quirks]\nstore = 3\n", 4, "providers.work.quirks.store", "choose one of true, false"),
    (
        f'{WORK}[providers.work.quirks]\nthinking_format = "loud"\n', 4, "providers.work.quirks.thinking_format",
        "choose one of none, reasoning_effort, ",
    ),
    ("[providers.anthropic]\nquirks = { store = true }\n", 2, "providers.anthropic.quirks", "anthropic has none"),
    ('[models.opnai."gpt-6.1"]\nwindow = 9\n', 1, "models.opnai", "Unknown provider 'opnai' (did you mean openai?)"),
    ('[models.openai."gpt-6.1"]\nwindow = "x"\n', 2, "models.openai.gpt-6.1.window", "Expected `int`, got `str`"),
    ('[models.openai."gpt-6.1"]\nwindow = 0\n', 2, "models.openai.gpt-6.1.window", ">= 1"),
    ('[models.openai."gpt-6.1"]\nwindw = 9\n', 2, "models.openai.gpt-6.1.windw", "(did you mean window?); choose "),
    ('[models.openai."gpt-6.1"]\nid = "x"\n', 2, "models.openai.gpt-6.1.id", "unknown setting"),
    ('[models.openai."gpt-6.1"]\nthinking = "on"\n', 2, "models.openai.gpt-6.1.thinking", "choose one of none, "),
    ('[models.openai."x".prices]\ninptu = 3\n', 2, "models.openai.x.prices.inptu", "(did you mean input?)"),
    ('[models.openai."x"]\nprices = { input = -1 }\n', 2, "models.openai.x.prices.input", ">= 0"),
    ('[provider]\nfallback_model = "antropic/x"\n', 2, "provider.fallback_model", "(did you mean anthropic?)"),
    ('[sandbox]\nhosts = [\n  "a.org",\n  "http://b.org/x",\n]\n', 4, "sandbox.hosts", "http://b.org/x"),
    ('[web]\nhosts = ["a b"]\n', 2, "web.hosts", "a b"),
    ('[sandbox]\nmasked = ["a", " "]\n', 2, "sandbox.masked", "a file or a folder (item 2 of the list)"),
    ('[sandbox]\nenvironment = ["A B"]\n', 2, "sandbox.environment", "write the name of an environment variable"),
    ('[sandbox]\nkind = "docker"\n', 2, "sandbox.kind", "set sandbox.docker_image"),
    ('[permissions]\nadditional_directories = ["/no/such"]\n', 2, "permissions.additional_directories", "not a folder"),
]  # fmt: skip


def refused(place: Place, *flags: str, **env: str) -> str:
    """The message of a run that does not begin."""
    ran = place.run("-p", "go", "-m", place.script(SAID), *flags, env=env)
    assert (ran.code, ran.out) == (2, "")
    return ran.err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("text", "line", "key", "says"), WRONG)
def test_a_wrong_setting_names_file_line_and_key(place: Place, text: str, line: int, key: str, says: str) -> None:
    file = place.folder / "wrong.toml"
    for mark in ("", "\ufeff"):
        file.write_bytes((mark + text).encode())
        told = refused(place, "--settings", "wrong.toml")
        assert told.startswith(f"agentcli: {file}, line {line}: {key}: ")
        assert says in told


@pytest.mark.parametrize(("text", "key", "says"), [(text, key, says) for text, _, key, says in WRONG[::6]])
def test_the_same_in_json_names_the_key(place: Place, text: str, key: str, says: str) -> None:
    file = place.folder / "wrong.json"
    file.write_text("\ufeff" + json.dumps(tomllib.loads(text), indent=2))
    told = refused(place, "--settings", "wrong.json")
    assert told.startswith(f"agentcli: {file}: {key}: ")
    assert says in told


TWICE = "wrong.json: {}: duplicate key"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("wrong.json", '{\n "retry": {\n  "max": }\n}', "wrong.json, line 3: "),
        ("wrong.json", '{"permissions": {\n "deny": ["bash(rm *)"],\n "deny": []}}', TWICE.format("deny")),
        ("wrong.json", '{"permissions": {"den\\u0079": ["bash"],\n "deny": []}}', TWICE.format("deny")),
        ("wrong.json", '{"permissions": {"deny": ["bash"]},\n "permissions": {}}', TWICE.format("permissions")),
        (
            "deep.json",
            '{"models": ' + '{"a": ' * 100_000 + "1" + "}" * 100_001,
            "deep.json: its brackets are nested",
        ),
        ("deep.toml", f"x = {'[' * 3000}{']' * 3000}", "deep.toml: its brackets are nested too deeply.\n"),
    ],
)
def test_a_file_that_cannot_be_read_or_says_something_twice_is_refused(
    place: Place, name: str, text: str, says: str
) -> None:
    (place.folder / name).write_text(text)
    assert says in refused(place, "--settings", name)


def test_the_same_key_in_two_tables_of_json_is_none_too_many(place: Place) -> None:
    models = {"openai": {"x": {"window": 9}, "y": {"window": 9}}}
    (place.folder / "right.json").write_text(
        json.dumps({"models": models, "permissions": {"deny": ["think", "think"]}})
    )
    assert place.run("-p", "go", "-m", place.script(SAID), "--settings", "right.json").out == "Hello.\n"


def test_settings_that_begin_with_a_byte_order_mark_count(place: Place) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_bytes(b"\xef\xbb\xbf[limits]\r\nmax_turns = 7\r\n")
    assert "max_turns = 7" in place.run("config", "show").out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--max-turns", "0"), "command line: --max-turns (limits.max_turns): Expected `int` >= 1"),
        (("-m", "claude"), "command line: --model (provider.model): 'claude' is not a model. Write PROVIDER/MODEL"),
        (("--fallback-model", "antropic/x"), "command line: --fallback-model (provider.fallback_model): Unknown"),
        (("--add-dir", "/no/such"), "command line: --add-dir (permissions.additional_directories): /no/such is not"),
        (("--tools", "bsh"), "command line: --tools (tools.only): Unknown tool 'bsh' (did you mean bash?)"),
    ],
)
def test_a_wrong_flag_is_named(place: Place, flags: tuple[str, ...], says: str) -> None:
    assert says in refused(place, *flags)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("AGENTCLI_TERMINAL_THEME", "pink", "choose one of auto, dark, "),
        ("AGENTCLI_TOOLS_OUTPUT_LEVELS", "bash=loud", "choose one of brief, standard, full"),
        ("AGENTCLI_TOOLS_ONLY", "bsh", "did you mean bash?"),
        ("AGENTCLI_PROVIDER_FALLBACK_MODEL", "antropic/x", "did you mean anthropic?"),
        ("AGENTCLI_SANDBOX_HOSTS", "http://a.org/x", "http://a.org/x"),
    ],
)
def test_a_wrong_variable_is_named_with_what_is_allowed(place: Place, variable: str, text: str, says: str) -> None:
    told = refused(place, **{variable: text})
    assert told.startswith(f"agentcli: environment: {variable}: ")
    assert says in told


def test_an_empty_variable_counts_as_unset(place: Place) -> None:
    place.home.mkdir()
    (place.home / "config.toml").write_text("[retry]\nmax = 9\n[sandbox]\nmasked = ['x']\n")
    shown = place.run("config", "show").out
    variables = ("RETRY_MAX", "TOKENS_EFFORT", "TERMINAL_THEME", "TOOLS_OUTPUT_LEVELS", "SANDBOX_MASKED", "NO_SUCH")
    assert "max = 9" in shown
    for text in ("", " "):
        ran = place.run("config", "show", env={f"AGENTCLI_{name}": text for name in variables})
        assert (ran.code, ran.out, ran.err) == (0, shown, "")


def test_a_variable_that_is_not_a_setting_is_a_warning(place: Place) -> None:
    env: dict[str, Any] = {"AGENTCLI_RETY_MAX": "3", "AGENTCLI_BIN": "/x", "AGENTCLI_PREFIX": "/y"}
    env |= {"AGENTCLI_SESSION_ID": "z", "AGENTCLI_TEST_GGUF": "/w", "AGENTCLI_MODEL": place.script(SAID)}
    told = "AGENTCLI_RETY_MAX is not a setting (did you mean AGENTCLI_RETRY_MAX?)"
    ran = place.run("-p", "go", env=env)
    assert (ran.code, ran.out) == (0, "Hello.\n")
    assert ran.err.startswith(f"agentcli: {told}")
    assert ran.err.count("\n") == 1
    assert told in place.run("tools", "run", "think", '{"thought": "hm"}', env=env).err
    assert told in place.run("config", "show", env=env).out


def test_the_settings_are_checked_where_they_are_shown(place: Place) -> None:
    place.home.mkdir()
    for text in (WRONG[4][0], '[permissions]\ndeny = ["Bsh(x)"]\n', '[tools]\nonly = ["bsh"]\n'):
        (place.home / "config.toml").write_text(text)
        ran = place.run("config", "show")
        assert ran.code == 2
        assert "config.toml, line " in ran.err
