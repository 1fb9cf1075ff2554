"""`agentcli config set` and `config get`: one setting is changed, or read with its source, and secrets stay hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.running import Place

pytestmark = pytest.mark.slow  # each test starts the program

MINE = "# mine\n[retry]  # how often\nmax = 3 # three\n\n[tools]\nonly = [\n  'bash', # runs\n]\n"


@pytest.fixture
def config(place: Place) -> Path:
    place.home.mkdir()
    (place.folder / ".git").mkdir()
    file = place.home / "config.toml"
    file.write_bytes(b"\xef\xbb\xbf" + MINE.encode())
    return file


def test_a_value_is_set_and_all_else_stays_as_it_was(place: Place, config: Path) -> None:
    for key, value in (("retry.max", "5"), ("provider.anthropic_version", "2023"), ('models.openai."x.1".window', "9")):
        ran = place.run("config", "set", key, value)
        assert (ran.code, ran.out) == (0, f"Set {key} in {config}.\n"), ran.err
    added = '\n[provider]\nanthropic_version = "2023"\n\n[models.openai."x.1"]\nwindow = 9\n'
    assert config.read_text("utf-8-sig") == MINE.replace("max = 3", "max = 5") + added
    assert config.read_bytes().startswith(b"#")  # without a byte order mark


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("retry.mxa", "5", "retry.mxa: unknown setting (did you mean max?)"),
        ("retries.max", "5", "retries: unknown setting (did you mean retry?)"),
        ("retry.max.x", "5", "retry.max.x: unknown setting: retry.max is a single value."),
        ("a b", "5", "'a b' is not the name of a setting"),
        ("retry.max", "many", "retry.max: Expected `int`, got `str`."),
        ("retry.max", "99", "retry.max: Expected `int` <= 20."),
        ("tokens.effort", "extreme", "choose one of low, medium, high, xhigh, max"),
        ("tools.only", "bash", 'Write a list as ["a", "b"].'),
        ("tools.only", '["bsh"]', "did you mean bash?"),
        ("terminal.theme", "pink", "unknown theme 'pink'"),
        ("provider.fallback_model", "antropic/x", "did you mean anthropic?"),
        ("permissions.deny", '["Bsh(x)"]', "unknown tool 'Bsh'"),
        ("sandbox.hosts", '["a b"]', "'a b' is not the name of a host"),
    ],
)
def test_a_wrong_value_is_explained_and_changes_nothing(
    place: Place, config: Path, key: str, value: str, says: str
) -> None:
    before = config.read_bytes()
    ran = place.run("config", "set", key, value)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert config.read_bytes() == before


def test_a_wrong_file_is_repaired_by_setting_what_is_wrong(place: Place, config: Path) -> None:
    config.write_text("[retry]\nmax = 'x'\n")
    assert place.run("config", "set", "limits.max_turns", "5").code == 2
    assert place.run("config", "set", "retry.max", "5").code == 0
    assert place.run("config", "get", "retry.max").out == "5\n"
    config.write_text("retry = 3\n")
    assert "retry is not a table" in place.run("config", "set", "retry.max", "5").err


def test_a_project_has_files_of_its_own_that_may_not_say_where_prompts_go(place: Place, config: Path) -> None:
    for scope, name in (("project", "config.toml"), ("local", "config.local.toml")):
        ran = place.run("config", "set", "limits.max_turns", "7", "--scope", scope)
        file = place.folder / ".agentcli" / name
        assert ran.out == f"Set limits.max_turns in {file}. To use it, run agentcli config trust.\n"
        assert file.read_text() == "[limits]\nmax_turns = 7\n"
        for key, value, shown in (
            ("provider.model", "a/b", "[provider]"),
            ('"provider".model', "a/b", "[provider]"),
            ("tokens.encoders", "x.toml", "tokens.encoders"),
            ("tokens", '{encoders = "x.toml"}', "tokens.encoders"),
        ):
            refused = place.run("config", "set", key, value, "--scope", scope)
            assert (refused.code, refused.err) == (
                2, f"agentcli: {shown} cannot be set by a project: set it in {config}.\n",
            )  # fmt: skip
    assert place.run("config", "get", "limits.max_turns").out == "\n"
    place.run("config", "trust", "--yes")
    got = json.loads(place.run("config", "get", "limits.max_turns", "--json").out)
    assert got == {"key": "limits.max_turns", "value": 7, "source": str(file)}


def test_the_value_that_counts_is_shown_with_its_source(place: Place, config: Path) -> None:
    env = {"AGENTCLI_RETRY_MAX": "2"}
    ran = place.run("config", "set", "retry.max", "4", env=env)
    assert ran.out.endswith(" AGENTCLI_RETRY_MAX (environment) overrides it here.\n")
    got = json.loads(place.run("config", "get", "retry.max", "--json", env=env).out)
    assert got == {"key": "retry.max", "value": 2, "source": "environment"}
    got = json.loads(place.run("config", "get", "tokens.effort", "--json").out)
    assert got == {"key": "tokens.effort", "value": None, "source": "default"}
    assert place.run("config", "get", "tools.only").out == '["bash"]\n'
    assert place.run("config", "get", "memory.enabled").out == "true\n"
    assert "max = 4\n" in place.run("config", "get", "retry").out
    assert "providers.work is not set" in place.run("config", "get", "providers.work").err


def test_no_secret_is_shown(place: Place, config: Path) -> None:
    secret = "ghp_" + "Zk3Xq9LwPz7Rt2Vb5Nm8Hc1Jd4Fg6Ys0Ua2E"
    config.write_text(
        f'''[observability.headers]
x = "{secret}"
[providers.work]
base_url = "https://me:hunter2@gateway.example/v1"
headers = {{ y = "{secret}" }}
[providers.short]
base_url = "https://me:pw7@gateway.example/v1"
[serve]
database = "postgresql://me:hunter2@db/x"
[mcp_servers.s]
command = "c"
env = {{ K = "hunter2" }}
[hooks]
PreToolUse = [{{ matcher = "{secret}" }}]
'''
    )
    keys = ("observability.headers", "providers", "providers.work.headers.y", "serve", "mcp_servers.s", "hooks")
    for command in (("show",), *(("get", key) for key in keys)):
        for flags in ((), ("--json",)):
            ran = place.run("config", *command, *flags)
            assert ran.code == 0, ran.err
            assert secret not in ran.out
            assert "hunter2" not in ran.out
            assert "pw7" not in ran.out
            assert "masked" in ran.out.lower(), ran.out
