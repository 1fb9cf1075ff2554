"""`agentcli config import`: settings of other tools, shown, asked about, and written beside those that are there."""

from __future__ import annotations

import json
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place
from tests.app.terminal import Terminal

pytestmark = pytest.mark.slow  # each test starts the program

TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
CLAUDE = {
    "permissions": {
        "allow": ["Bash(npm run test:*)", "Edit(/src/**)", "NotebookEdit", "Bash(", f"Bash(curl -H 'X: {TOKEN}' *)"],
        "deny": ["Read(./.env)"],
        "ask": ["Bash(git push *)"],
        "defaultMode": "acceptEdits",
        "additionalDirectories": ["/nowhere/at/all", "../shared", "/usr"],
    },
    "hooks": {
        "PreToolUse": [
            {
                "matcher": "Write|Edit",
                "hooks": [
                    {"type": "command", "command": '"$CLAUDE_PROJECT_DIR"/guard.sh', "timeout": 10},
                    {"type": "prompt", "prompt": "Is it good?"},
                ],
            }
        ],
        "Setup": [{"hooks": [{"type": "command", "command": "true"}]}],
    },
    "env": {"FOO": "1", "ANTHROPIC_API_KEY": TOKEN, "ANTHROPIC_BASE_URL": "https://gateway.example.org"},
    "model": "opus",
    "statusLine": {"type": "command", "command": "x"},
}
CODEX = f"""
model = "gpt-6-sol"
model_reasoning_effort = "high"
approval_policy = "on-request"
sandbox_mode = "read-only"
[sandbox_workspace_write]
network_access = true
writable_roots = ["/usr/share"]
[model_providers.work]
name = "Work"
base_url = "https://llm.example.org/v1"
env_key = "WORK_KEY"
http_headers = {{ "X-Team" = "a", "Authorization" = "Bearer {TOKEN}" }}
[model_providers.other]
base_url = "https://other.example.org/v1"
wire_api = "responses"
[[hooks.PostToolUse]]
[[hooks.PostToolUse.hooks]]
type = "command"
command = "true"
[projects."/x"]
trust_level = "trusted"
"""


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def person(place: Place) -> Place:
    """Somebody who has used both."""
    home = Path(place.environment["HOME"])
    write(home / ".claude/settings.json", json.dumps(CLAUDE))
    write(home / ".codex/config.toml", CODEX)
    write(home / ".codex/AGENTS.md", "Be kind.\n")
    return place


def settings(place: Place) -> dict[str, Any]:
    return tomllib.loads((place.home / "config.toml").read_text())


def test_imports_are_shown_and_written_only_after_approval(person: Place) -> None:
    shown = person.run("config", "import")
    assert (shown.code, shown.err) == (0, "")
    assert "\nNothing was written" in shown.out
    assert not (person.home / "config.toml").exists()
    written = person.run("config", "import", "--yes")
    assert written.out.startswith(shown.out.partition("Skipped:")[0])
    assert settings(person) == {
        "permissions": {
            "allow": ["Bash(npm run test:*)"],
            "deny": ["Read(./.env)"],
            "ask": ["Bash(git push *)"],
            "mode": "acceptEdits",
            "additional_directories": ["/usr"],
        },
        "hooks": {
            "PreToolUse": [
                {
                    "matcher": "Write|Edit",
                    "hooks": [{"type": "command", "command": '"$CLAUDE_PROJECT_DIR"/guard.sh', "timeout": 10.0}],
                }
            ],
            "PostToolUse": [{"hooks": [{"type": "command", "command": "true"}]}],
        },
        "providers": {
            "anthropic": {"base_url": "https://gateway.example.org"},
            "work": {"base_url": "https://llm.example.org/v1", "api_key_env": "WORK_KEY"},
        },
        "provider": {"model": "anthropic/claude-opus-5-5"},
        "tokens": {"effort": "high"},
        "sandbox": {"profile": "read-only", "writable": ["/usr/share"]},
    }
    assert person.run("config", "show").code == 0  # it is settings that a session takes
    assert "PreToolUse" in person.run("hooks", "list").out
    assert person.run("config", "import", "--yes").out.endswith("There is nothing to import.\n")


def test_omissions_are_reported_with_reasons_and_no_key_is_shown_or_copied(person: Place) -> None:
    ran = person.run("config", "import", "--yes")
    left_out = ran.out.partition("Skipped:\n")[2]
    for what, why in {
        "Edit(/src/**)": "the settings folder",
        "NotebookEdit": "no counterpart to",
        "Bash(:": "is not a permission rule",
        "Bash(curl": "a key or token",
        "/nowhere/at/all": "no such folder",
        "../shared": "depends on the project",
        "Setup": "unknown event",
        "hooks.PreToolUse:": "a hook without a command",
        "env.FOO": "export it",
        "env.ANTHROPIC_API_KEY": "agentcli login",
        "statusLine": "no such setting",
        "config.toml: model": "already",
        "approval_policy": "already",
        "network_access": "sandbox.hosts",
        "model_providers.work.http_headers": "a key or token",
        "model_providers.other": "Chat Completions",
        ".codex/AGENTS.md": "copy it to",
        "projects": "agentcli config trust",
    }.items():
        assert any(what in line and why in line for line in left_out.splitlines()), (what, left_out)
    assert TOKEN not in ran.out + (person.home / "config.toml").read_text()


def test_settings_that_are_there_stay_with_their_comments(person: Place) -> None:
    before = """\
# mine
[permissions]
mode = "plan"  # careful
allow = [
  "Bash(ls *)",  # harmless
]

[providers.work]
base_url = "https://mine.example.org"
"""
    write(person.home / "config.toml", before).chmod(0o640)
    ran = person.run("config", "import", "--yes")
    assert f"permissions.mode: {person.home / 'config.toml'} already sets it" in ran.out
    text = (person.home / "config.toml").read_text()
    for kept in ("# mine\n", 'mode = "plan"  # careful\n', '  "Bash(ls *)",  # harmless\n'):
        assert kept in text
    after = settings(person)
    assert after["permissions"]["mode"] == "plan"
    assert after["permissions"]["allow"] == ["Bash(ls *)", "Bash(npm run test:*)"]
    assert after["providers"]["work"] == {"base_url": "https://mine.example.org"}
    assert (person.home / "config.toml").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "before",
    [
        'hooks.PostToolUse = [{ matcher = "Edit", hooks = [{ type = "command", command = "mine" }] }]\n',
        '[[hooks.PostToolUse]]\r\nmatcher = "Edit"\r\n[[hooks.PostToolUse.hooks]]\r\ncommand = "mine"\r\n# end\r\n',
        '[permissions]\nask = ["Bash(git push *)"]\n[[hooks.PostToolUse]]\ncommand = "mine"\n[limits]\nmax_turns = 3\n',
        'permissions = { allow = ["Bash(ls *)"] }\nhooks.PostToolUse = [{ command = "mine" }]\n',
    ],
)
def test_every_way_to_write_settings_is_added_to(person: Place, before: str) -> None:
    file = write(person.home / "config.toml", "")
    file.write_bytes(before.encode())
    assert person.run("config", "import", "--yes").code == 0
    mine, theirs = settings(person)["hooks"]["PostToolUse"]
    assert "mine" in json.dumps(mine)
    assert theirs == {"hooks": [{"type": "command", "command": "true"}]}
    assert file.read_bytes().count(b"\r\n") == before.count("\r\n")


def test_what_cannot_be_added_to_is_an_error_and_stays_as_it_is(person: Place) -> None:
    hook = '[[hooks.PostToolUse]]\ncommand = "mine"\n'
    file = write(person.home / "config.toml", f"{hook}[limits]\nmax_turns = 3\n{hook}")
    before = file.read_bytes()
    ran = person.run("config", "import", "--yes")
    assert ran.code == 1
    assert "[hooks] in several places" in ran.err
    assert file.read_bytes() == before


def test_a_project_gets_its_own_and_its_local_settings(place: Place) -> None:
    write(place.folder / ".claude/settings.json", json.dumps({**CLAUDE, "model": "opus"}))
    write(place.folder / ".claude/settings.local.json", json.dumps({"permissions": {"allow": ["Bash(make *)"]}}))
    remembered = {"projects": {str(place.folder): {"allowedTools": ["Bash(uv run *)"]}}}
    write(Path(place.environment["HOME"]) / ".claude.json", json.dumps(remembered))
    ran = place.run("config", "import", "claude-code", "--project", "--yes")
    shared = tomllib.loads((place.folder / ".agentcli/config.toml").read_text())
    local = tomllib.loads((place.folder / ".agentcli/config.local.toml").read_text())
    assert shared.keys() == {"permissions", "hooks"}
    assert "Edit(/src/**)" in shared["permissions"]["allow"]
    assert local == {"permissions": {"allow": ["Bash(make *)", "Bash(uv run *)"]}}
    assert "provider.model cannot be set by a project" in ran.out
    assert "to use it, run agentcli config trust" in ran.out
    assert not (place.home / "config.toml").exists()


def test_a_projects_link_leads_no_write_out_of_it(place: Place) -> None:
    write(place.folder / ".claude/settings.json", json.dumps(CLAUDE))
    outside = write(place.folder.parent / "dotfiles.toml", "# theirs\n")
    (place.folder / ".agentcli").mkdir()
    (place.folder / ".agentcli/config.toml").symlink_to(outside)
    ran = place.run("config", "import", "--project", "--yes")
    assert ran.code == 2
    assert "is outside this project" in ran.err
    assert outside.read_text() == "# theirs\n"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (".claude/settings.json", "{", "could not read it"),
        (".claude/settings.json", "[]", "nothing to import"),
        (".claude/settings.json", '{"permissions": 3, "hooks": 4, "env": []}', "not a table of events"),
        (".codex/config.toml", "model = [", "could not read it"),
        (".codex/config.toml", "model = 3\nsandbox_mode = 4\nmcp_servers = 5", "sandbox_mode"),
        (".codex/config.toml", 'sandbox_mode = "danger-full-access"\napproval_policy = "never"', "set it yourself"),
    ],
)
def test_files_that_make_no_sense_are_reported_and_nothing_is_written(
    place: Place, file: str, text: str, said: str
) -> None:
    write(Path(place.environment["HOME"]) / file, text)
    ran = place.run("config", "import", "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert said in ran.out
    assert not (place.home / "config.toml").exists()


@pytest.mark.parametrize(("name", "model"), [("work", "work/coder"), ("groq", "groq/coder"), ("gone", "")])
def test_the_model_is_that_of_a_known_provider_or_of_one_that_is_imported(place: Place, name: str, model: str) -> None:
    providers = '[model_providers.work]\nbase_url = "https://llm.example.org/v1"\n'
    codex = f'model = "coder"\nmodel_provider = "{name}"\n{providers}'
    write(Path(place.environment["HOME"]) / ".codex/config.toml", codex)
    ran = place.run("config", "import", "codex", "--yes")
    assert settings(place).get("provider", {}).get("model", "") == model
    assert ("agentcli does not know the provider gone" in ran.out) == (not model)


def test_broken_user_settings_are_an_error_and_stay(person: Place) -> None:
    file = write(person.home / "config.toml", "[limits\n")
    ran = person.run("config", "import", "--yes")
    assert ran.code == 2
    assert file.read_text() == "[limits\n"


def test_a_person_is_asked(person: Place) -> None:
    env = {"HOME": person.environment["HOME"], "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": ""}
    for answer, there in (("n", False), ("y", True)):
        with closing(Terminal(person.folder, "config", "import", "codex", rows=60, **env)) as terminal:
            terminal.see(r"Write these settings\?")
            terminal.type(f"{answer}\r")
            terminal.exit_code()
        assert (person.home / "config.toml").exists() == there
    assert settings(person)["provider"] == {"model": "openai/gpt-6-sol"}


def test_an_unknown_tool_is_a_usage_error(place: Place) -> None:
    ran = place.run("config", "import", "claud-code")
    assert ran.code == 2
    assert "did you mean claude-code?" in ran.err


def test_a_person_is_asked_before_a_project_is_trusted(place: Place) -> None:
    write(place.folder / ".agentcli/config.toml", "[limits]\nmax_turns = 7\n")
    for answer, is_trusted in (("n", False), ("y", True)):
        with closing(Terminal(place.folder, "config", "trust")) as terminal:
            terminal.see(r"(?s)max_turns = 7.*Trust these files as they are now\?")
            terminal.type(f"{answer}\r")
            terminal.exit_code()
        assert (json.loads(place.run("config", "show", "--json").out)["limits"]["max_turns"] == 7) == is_trusted


@pytest.mark.parametrize("changed", [".agentcli/config.toml", "hook.sh"])
def test_files_changed_during_the_question_are_not_trusted(place: Place, changed: str) -> None:
    write(place.folder / "hook.sh", "#!/bin/sh\n")
    (place.folder / "hook.sh").chmod(0o755)
    settings = '[limits]\nmax_turns = 7\n[[hooks.Stop]]\nhooks = [{type = "command", command = "./hook.sh"}]\n'
    write(place.folder / ".agentcli/config.toml", settings)
    with closing(Terminal(place.folder, "config", "trust")) as terminal:
        terminal.see(r"(?s)max_turns = 7.*Trust these files as they are now\?")
        with (place.folder / changed).open("a") as file:
            file.write("# more\n")
        terminal.type("y\r")
        terminal.see("changed in the meantime")
        assert terminal.exit_code() == 2
    assert json.loads(place.run("config", "show", "--json").out)["limits"]["max_turns"] != 7


@pytest.mark.parametrize(("given", "is_taken"), [("GH_TOKEN", True), (TOKEN, False), ("AbCd0123456789efgh", False)])
def test_a_server_is_taken_with_the_name_of_a_variable_and_never_with_a_token(
    place: Place, given: str, is_taken: bool
) -> None:
    table = f'[mcp_servers.gh]\nurl = "https://mcp.example.org"\nbearer_token_env_var = "{given}"\n'
    write(Path(place.environment["HOME"]) / ".codex/config.toml", table)
    ran = place.run("config", "import", "--yes")
    file = place.home / "config.toml"
    written = file.read_text() if file.exists() else ""
    assert (given in written) is is_taken
    assert is_taken or given not in ran.out
