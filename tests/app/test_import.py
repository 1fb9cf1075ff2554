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
                    {"type": "http"},
                ],
            }
        ],
        "Nonsense": [{"hooks": [{"type": "command", "command": "true"}]}],
    },
    "env": {"FOO": "1", "ANTHROPIC_API_KEY": TOKEN, "ANTHROPIC_BASE_URL": "https://gateway.example.org"},
    "model": "opus",
    "statusLine": {"type": "command", "command": "x"},
    "cleanupPeriodDays": 20,
    "sandbox": {"filesystem": {"denyRead": ["~/.netrc", 5, "/srv/keys"]}},
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
                },
                {"matcher": "Write|Edit", "hooks": [{"type": "prompt", "prompt": "Is it good?"}]},
            ],
            "PostToolUse": [{"hooks": [{"type": "command", "command": "true"}]}],
        },
        "providers": {
            "anthropic": {"base_url": "https://gateway.example.org"},
            "work": {"base_url": "https://llm.example.org/v1", "api_key_env": "WORK_KEY"},
            "other": {"base_url": "https://other.example.org/v1", "quirks": {"api": "responses"}},
        },
        "terminal": {"status_command": "x", "status_format": "claude"},
        "provider": {"model": "anthropic/claude-opus-5-5"},
        "tokens": {"effort": "high"},
        "sandbox": {"profile": "read-only", "writable": ["/usr/share"], "masked": ["~/.netrc", "/srv/keys"]},
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
        "Nonsense": "unknown event",
        "hooks.PreToolUse:": "a hook without a url",
        "env.FOO": "export it",
        "env.ANTHROPIC_API_KEY": "agentcli login",
        "cleanupPeriodDays": "no such setting",
        "sandbox.filesystem.denyRead": "got `int`",
        "config.toml: model": "already",
        "approval_policy": "already",
        "network_access": "sandbox.hosts",
        "model_providers.work.http_headers": "a key or token",
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
    assert shared.keys() == {"permissions", "hooks", "sandbox"}
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
        (".config/goose/config.yaml", "extensions: {a: {cmd: x, envs: 3, env_keys: 4}, b: 5", "could not read it"),
        (
            ".config/opencode/opencode.json",
            '{"provider": {"a": {"options": 3}}, "mcp": 4, "permission": 5}',
            "nothing to",
        ),
        (".cursor/mcp.json", '{"mcpServers": {"a": {"command": [], "env": 3}}}', "neither a command"),
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


# Other tools

GEMINI = {
    "model": {"name": "gemini-3-pro"},
    "tools": {"allowed": ["run_shell_command(git status)", "read_file"], "exclude": ["web_fetch"]},
    "general": {"defaultApprovalMode": "auto_edit"},
    "mcpServers": {"docs": {"httpUrl": "https://docs.example.org/mcp", "includeTools": ["find"], "timeout": 3000}},
}
OPENCODE = """{
  "$schema": "https://opencode.ai/config.json", // version 1
  "model": "work/coder",
  "provider": {"work": {"options": {"baseURL": "https://llm.example.org/v1", "apiKey": "{env:WORK_KEY}"}}},
  "permission": {"edit": "deny", "bash": {"*": "ask", "git status": "allow", "rm *": "deny"}, "webfetch": "allow"},
  "mcp": {"here": {"type": "local", "command": ["npx", "-y", "server"], "environment": {"LEVEL": "2"}},},
}
"""
OPENCODE_2 = {
    "permissions": [
        {"action": "shell", "resource": "git status", "effect": "allow"},
        {"action": "read", "resource": "secrets/**", "effect": "deny"},
        {"action": "shell", "resource": "*", "effect": "ask"},
    ],
    "mcp": {"servers": {"far": {"type": "remote", "url": "https://far.example.org", "disabled": True}}},
}
CURSOR = {"permissions": {"allow": ["Shell(git)", "Mcp(docs:find)"], "deny": ["Read(.env*)"]}, "model": {"id": "x"}}
COPILOT = {"mcpServers": {"gh": {"type": "local", "command": "gh-mcp", "args": ["-x"], "tools": ["*"]}}}
GOOSE = """
GOOSE_PROVIDER: anthropic
GOOSE_MODEL: claude-opus-5-5
GOOSE_MODE: smart_approve
extensions:
  memory: {type: builtin, name: memory, enabled: true}
  jira: {type: stdio, cmd: uvx, args: [jira], env_keys: [JIRA_TOKEN], timeout: 300, enabled: true}
"""
AIDER = (
    f"model: claude-opus-5-5\nweak-model: gemini/gemini-3.8-flash\nanthropic-api-key: {TOKEN}\nauto-commits: false\n"
)
EACH: list[tuple[str, str, str | dict[str, Any], dict[str, Any], list[str]]] = [
    (
        "gemini", ".gemini/settings.json", GEMINI,
        {
            "provider": {"model": "gemini/gemini-3-pro"},
            "permissions": {"allow": ["Bash(git status *)", "Read"], "deny": ["WebFetch"], "mode": "acceptEdits"},
            "mcp_servers": {"docs": {"url": "https://docs.example.org/mcp", "enabled_tools": ["find"]}},
        },
        [],
    ),
    (
        "opencode", ".config/opencode/opencode.jsonc", OPENCODE,
        {
            "provider": {"model": "work/coder"},
            "providers": {"work": {"base_url": "https://llm.example.org/v1", "api_key_env": "WORK_KEY"}},
            "permissions": {"deny": ["Edit", "Write", "Bash(rm *)"], "allow": ["Bash(git status)", "WebFetch"]},
            "mcp_servers": {"here": {"command": "npx", "args": ["-y", "server"], "env": {"LEVEL": "2"}}},
        },
        [],
    ),
    (
        "opencode", ".config/opencode/opencode.json", OPENCODE_2,
        {
            "permissions": {"allow": ["Bash(git status)"], "deny": ["Read(secrets/**)"]},
            "mcp_servers": {"far": {"url": "https://far.example.org", "enabled": False}},
        },
        [],
    ),
    (
        "cursor", ".cursor/cli-config.json", CURSOR,
        {"permissions": {"allow": ["Bash(git *)", "mcp__docs__find"], "deny": ["Read(.env*)"]}},
        ["model: it is reached only through Cursor"],
    ),
    (
        "copilot", ".copilot/mcp-config.json", COPILOT,
        {"mcp_servers": {"gh": {"command": "gh-mcp", "args": ["-x"]}}},
        [],
    ),
    (
        "goose", ".config/goose/config.yaml", GOOSE,
        {
            "provider": {"model": "anthropic/claude-opus-5-5"},
            "permissions": {"mode": "default"},
            "mcp_servers": {
                "jira": {
                    "type": "stdio", "command": "uvx", "args": ["jira"], "env": {"JIRA_TOKEN": "${JIRA_TOKEN}"},
                    "enabled": True,
                }
            },
        },
        ["memory: it has neither a command nor a url"],
    ),
    (
        "aider", ".aider.conf.yml", AIDER,
        {
            "provider": {"model": "anthropic/claude-opus-5-5"},
            "compaction": {"summary_model": "gemini/gemini-3.8-flash"},
        },
        ["anthropic-api-key: it contains a key", "auto-commits: agentcli has no such setting"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "file", "given", "taken", "left_out"), EACH)
def test_each_tool_s_settings_come_over(
    place: Place, tool: str, file: str, given: str | dict[str, Any], taken: dict[str, Any], left_out: list[str]
) -> None:
    write(Path(place.environment["HOME"]) / file, given if isinstance(given, str) else json.dumps(given))
    ran = place.run("config", "import", tool, "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert settings(place) == taken
    for line in left_out:
        assert line in ran.out
    assert TOKEN not in ran.out
    assert place.run("config", "show").code == 0  # it is settings that a session takes


def test_commands_come_over_in_our_form_and_replace_none(place: Place) -> None:
    home = Path(place.environment["HOME"])
    write(home / ".codex/prompts/review.md", "Review $1.\n")
    write(
        home / ".gemini/commands/git/sum.toml",
        'description = "Sum: up"\nprompt = "Sum {{args}} of !{git log} @{a.md}"\n',
    )
    write(home / ".gemini/commands/leak.toml", f'prompt = "{TOKEN}"\n')
    same_names = home / ".codex/prompts/review.toml", home / ".gemini/commands/review.md"
    write(same_names[0], 'prompt = "Other"\n')
    write(same_names[1], "Another.\n")
    mine = write(place.home / "commands/mine.md", "Mine.\n")
    write(home / ".codex/prompts/mine.md", "Theirs.\n")
    shown = place.run("config", "import").out
    assert f"Commands:\n  {place.home}/commands/review.md\n" in shown
    assert not (place.home / "commands/review.md").exists()
    ran = place.run("config", "import", "--yes")
    assert (place.home / "commands/review.md").read_text() == "Review $1.\n"
    summary = (place.home / "commands/git/sum.md").read_text()
    assert summary == '---\ndescription: "Sum: up"\n---\nSum $ARGUMENTS of !`git log` @a.md'
    assert mine.read_text() == "Mine.\n"
    assert "mine.md is there already" in ran.out
    for file in same_names:
        assert f"{file}: an earlier file already becomes {place.home}/commands/review.md." in ran.out
    assert (TOKEN in ran.out, (place.home / "commands/leak.md").exists()) == (False, False)


def test_the_active_profile_of_codex_is_taken(place: Place) -> None:
    codex = 'profile = "deep"\nmodel = "gpt-a"\n[profiles.deep]\nmodel = "gpt-b"\nmodel_reasoning_effort = "high"\n'
    write(Path(place.environment["HOME"]) / ".codex/config.toml", codex)
    ran = place.run("config", "import", "codex", "--yes")
    assert settings(place) == {"provider": {"model": "openai/gpt-b"}, "tokens": {"effort": "high"}}
    assert "profiles: agentcli has no profiles" in ran.out


def test_a_project_gets_commands_and_rules_of_its_tools(place: Place) -> None:
    write(place.folder / ".cursor/cli.json", json.dumps(CURSOR))
    write(place.folder / ".cursor/commands/fix.md", "Fix it.\n")
    ran = place.run("config", "import", "cursor", "--project", "--yes")
    assert ran.code == 0, ran.err
    assert "Bash(git *)" in (place.folder / ".agentcli/config.toml").read_text()
    assert (place.folder / ".agentcli/commands/fix.md").read_text() == "Fix it.\n"


def test_rules_that_a_project_has_for_claude_code_alone_are_named_until_they_are_imported(place: Place) -> None:
    settings = {"permissions": {"deny": ["Bash(git push:*)"]}, "hooks": CLAUDE["hooks"]}
    write(place.folder / ".claude/settings.json", json.dumps(settings))
    write(place.folder / ".claude/settings.local.json", json.dumps({"model": "opus"}))
    model = place.script({"text": "Hi."})
    how = "Not in force: permissions and hooks in .claude/settings.json. To take them over: agentcli config import"
    assert f"{how} claude-code --project\n" in place.run("-m", model, "-p", "go").err
    assert how in place.run("config", "trust").out
    assert "Not in force" not in place.run("-m", model, "--bare", "-p", "go").err
    write(place.folder / ".agentcli/config.toml", "[tools]\n")  # a file of our own without these keys
    assert how in place.run("-m", model, "-p", "go").err
    assert place.run("config", "import", "claude-code", "--project", "--yes").code == 0
    assert "Not in force" not in place.run("-m", model, "-p", "go").err
