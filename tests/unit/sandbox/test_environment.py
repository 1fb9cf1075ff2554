"""The environment of commands: what programs need, and nothing that is secret or runs by itself."""

from __future__ import annotations

import pytest

from agentcli.infra.sandbox.environment import command_environment
from tests.rows import each_row

KEY = "x" * 40


def seen(**variables: str) -> dict[str, str]:
    return command_environment(variables, "")


@each_row(
    "name",
    "PATH HOME LANG LC_TIME TZ TMPDIR XDG_CACHE_HOME VIRTUAL_ENV CONDA_PREFIX PYENV_ROOT NVM_DIR NODE_ENV JAVA_HOME "
    "GOPATH GOROOT CARGO_HOME RUSTUP_HOME RUSTFLAGS CC CXX CFLAGS SSL_CERT_FILE http_proxy NO_PROXY CI GIT_AUTHOR_NAME "
    "GIT_COMMITTER_EMAIL LD_LIBRARY_PATH NO_COLOR".split(),
)
def test_what_programs_need_is_there(name: str) -> None:
    assert seen(**{name: "/some/value"})[name] == "/some/value"


@each_row(
    "name",
    "ANTHROPIC_API_KEY OPENAI_API_KEY GITHUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN PGPASSWORD DATABASE_URL "
    "NODE_AUTH_TOKEN CARGO_REGISTRY_TOKEN CARGO_REGISTRIES_MINE_TOKEN npm_config__auth UV_PUBLISH_PASSWORD "
    "POETRY_HTTP_BASIC_MINE_PASSWORD HOMEBREW_GITHUB_API_TOKEN SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS "
    "BASH_ENV ENV LD_PRELOAD LD_AUDIT PROMPT_COMMAND PS4 BASH_FUNC_ls%% PYTHONSTARTUP GIT_DIR GIT_CONFIG_GLOBAL "
    "GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_ASKPASS SSH_ASKPASS SUDO_ASKPASS".split(),
)
def test_what_is_secret_or_runs_by_itself_is_not(name: str) -> None:
    assert name not in seen(**{name: "/some/value"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIP_INDEX_URL", "https://me:secret@packages.example/simple"),
        ("https_proxy", "http://me:secret@proxy:3128"),
        ("NPM_CONFIG_EXTRA", f"npm_{KEY}"),
        ("FLASK_SETTING", f"sk-ant-{KEY}"),
        ("UV_X", f"ghp_{KEY}"),
        ("CONDA_X", "AKIAIOSFODNN7EXAMPLE"),
        ("XDG_X", "-----BEGIN OPENSSH PRIVATE KEY-----"),
    ],
)
def test_a_value_that_looks_like_a_key_is_left_out_whatever_its_name(name: str, value: str) -> None:
    assert name not in seen(**{name: value})


def test_what_is_allowed_by_name_is_there_as_it_is() -> None:
    environment = {"GH_TOKEN": f"ghp_{KEY}", "MY_OWN": "1", "OTHER": "2"}
    kept = command_environment(environment, "", allowed=["GH_TOKEN", "MY_OWN"])
    assert (kept["GH_TOKEN"], kept["MY_OWN"], "OTHER" in kept) == (f"ghp_{KEY}", "1", False)


def test_nothing_waits_for_a_person() -> None:
    kept = command_environment({"EDITOR": "vim", "PAGER": "less", "TERM": "xterm"}, "s-1")
    assert (kept["EDITOR"], kept["VISUAL"], kept["PAGER"], kept["TERM"]) == ("true", "true", "cat", "dumb")
    assert kept["GIT_TERMINAL_PROMPT"] == "0"
    assert kept["AGENTCLI_SESSION_ID"] == "s-1"


def test_temporary_files_go_where_the_person_has_them() -> None:
    assert seen(TMPDIR="/mine")["TMPDIR"] == "/mine"
