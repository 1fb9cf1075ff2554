"""A wide rule for commands opens neither files with secrets nor those that programs execute by themselves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.app.running import Place, call
from tests.processes import needs_bubblewrap

KEY = "CANARYqX7zKp93LmVtRb5"
STREAM = ("--output-format", "stream-json", "--permission-mode", "bypassPermissions")


def bashrc(place: Place) -> Path:
    return place.folder.parent / ".bashrc"


@pytest.fixture
def project(place: Place) -> Place:
    """A repository with a secret, and files that git, an editor and the shell would execute."""
    subprocess.run(("git", "init", "-q", "."), cwd=place.folder, check=True)
    (place.folder / ".env").write_text(f"API_KEY={KEY}\n")
    (place.folder / ".git/hooks/pre-commit").write_text("theirs\n")
    (place.folder / ".vscode").mkdir()
    (place.folder / ".vscode/tasks.json").write_text("theirs\n")
    bashrc(place).write_text("theirs\n")
    (place.folder / "evil").write_text("evil\n")
    (place.folder / "link").symlink_to(bashrc(place))
    return place


def outcome(place: Place, commands: list[str], mode: str, *rules: str) -> list[str]:
    """The commands that were refused, in a run in which nobody can be asked."""
    calls = [call("bash", command=command) for command in commands]
    allowed = [part for rule in rules for part in ("--allow", rule)]
    script = place.script({"tool_calls": calls}, {"text": "."})
    ran = place.run(
        *("-m", script, "-p", "go", "--permission-mode", mode, "--output-format", "stream-json", "--verbose", *allowed)
    )
    assert KEY not in ran.out
    assert KEY[::-1] not in ran.out
    return [denial["tool_input"]["command"] for denial in ran.result["permission_denials"]]


WRITES = [
    "cp evil .git/hooks/pre-commit",
    "cat evil | tee .git/config",
    "dd if=evil of=.vscode/tasks.json",
    "cp evil ~/.bashrc",
    "cp evil link",
    "cp -r . ~",
]


@needs_bubblewrap
@pytest.mark.parametrize("mode", ["default", "dontAsk"])
def test_a_grant_of_a_program_does_not_open_what_other_programs_execute(project: Place, mode: str) -> None:
    rules = ("Bash(cp *)", "Bash(tee *)", "Bash(dd *)")
    assert outcome(project, [*WRITES, "cp evil copy"], mode, *rules) == WRITES
    assert (project.folder / "copy").exists()
    for name in (".git/hooks/pre-commit", ".vscode/tasks.json"):
        assert (project.folder / name).read_text() == "theirs\n"
    assert bashrc(project).read_text() == "theirs\n"


@needs_bubblewrap
def test_a_grant_that_names_the_file_opens_it(project: Place) -> None:
    commands = ["cp evil .git/hooks/pre-commit", "cp evil .vscode/tasks.json"]
    rules = ("Bash(cp * .git/hooks/*)", "Bash(cp *)", "Edit(.vscode/tasks.json)")
    assert outcome(project, commands, "dontAsk", *rules) == []
    assert (project.folder / ".git/hooks/pre-commit").read_text() == "evil\n"
    assert (project.folder / ".vscode/tasks.json").read_text() == "evil\n"


@needs_bubblewrap
def test_a_grant_of_all_commands_opens_no_more_where_a_part_is_not_read(project: Place) -> None:
    commands = [
        "rev .env; for i in 1; do :; done",
        "if true; then cp evil ~/.bashrc; fi",
        "for f in .env; do rev $f; done",
        "eval true; rev .env",
        "HOME=/; rev ~/.ssh/id_rsa",
        "git show HEAD:.env; x=1",
    ]
    assert outcome(project, [*commands, "for i in 1; do echo $i > made; done"], "dontAsk", "Bash") == commands
    assert bashrc(project).read_text() == "theirs\n"
    assert (project.folder / "made").exists()


def test_it_is_explained_which_part_no_rule_opens_and_why(project: Place) -> None:
    command = "cp evil copy; cp evil .git/hooks/pre-commit; make"
    ran = project.run("permissions", "explain", command, "--json", env={"AGENTCLI_PERMISSIONS_ALLOW": "Bash"})
    explained = json.loads(ran.out)
    kind = "an auto-executed file (git hook, editor task, shell profile …)"
    why = f".git/hooks/pre-commit is {kind}, and no rule names it"
    assert (explained["verdict"], explained["rule"]) == ("ask", why)
    allowed = ("allow", "the rule bash allows it")
    assert [(part["verdict"], part["reason"]) for part in explained["segments"]] == [allowed, ("ask", why), allowed]


def test_a_rule_that_names_a_file_lets_edits_write_it(project: Place) -> None:
    outside = project.folder.parent / "elsewhere.txt"
    names = [".env", str(outside), str(outside.with_name("other.txt"))]
    calls = [call("file_write", path=name, content="new") for name in names if name != ".env"]
    calls.insert(0, call("file_edit", path=".env", old_string="API_KEY", new_string="API_TOKEN"))
    script = project.script({"tool_calls": calls}, {"text": "."})
    rules = ("--allow", "Edit(.env)", "--allow", f"Write(/{outside})")
    ran = project.run("-p", "go", "-m", script, "--output-format", "json", *rules)
    denied = [denial["tool_input"]["path"] for denial in json.loads(ran.out)["permission_denials"]]
    assert denied == names[2:]
    assert (outside.read_text(), outside.with_name("other.txt").exists()) == ("new", False)
    assert (project.folder / ".env").read_text() == f"API_TOKEN={KEY}\n"


@needs_bubblewrap
def test_a_grant_of_all_commands_opens_no_settings_of_agentcli_wherever_its_home_is(project: Place) -> None:
    home = project.home
    commands = [
        f"cp evil {home}/config.toml",
        f"mkdir {home}/agents",
        f"cp evil {home}/state/trust.json",
        f"cat {home}/config.toml",
        f"cp evil {home.parent}/link/config.toml",
    ]
    home.mkdir()
    (home / "config.toml").write_text("# mine\n")
    (home.parent / "link").symlink_to(home)
    assert outcome(project, commands, "dontAsk", "Bash") == commands
    assert (home / "config.toml").read_text() == "# mine\n"


def test_a_search_leaves_out_what_agentcli_keeps_secret_wherever_its_home_is(place: Place) -> None:
    place.environment["AGENTCLI_HOME"] = str(home := place.folder / "moved")
    home.mkdir()
    (home / "config.toml").write_text(f'[providers.x]\nbase_url = "http://x/"\nheaders = {{ x-key = "{KEY}" }}\n')
    (place.folder / "plain").write_text("CANARY of a mine\n")
    searches = [call("grep_search", pattern="CANARY", path=path) for path in (".", "moved")]
    ran = place.run("-p", "go", "-m", place.script({"tool_calls": searches}, {"text": "."}), *STREAM)
    assert "CANARY of a mine" in ran.out
    assert KEY not in ran.out


@needs_bubblewrap
def test_commands_run_where_the_folder_of_caches_is_a_link(place: Place) -> None:
    (target := place.folder.parent / "elsewhere").mkdir()
    place.home.mkdir()
    (place.home / "cache").symlink_to(target)
    script = place.script({"tool_calls": [call("bash", command="echo ran")]}, {"text": "."})
    ran = place.run("-p", "go", "-m", script, *STREAM)
    assert '"content":"ran"' in ran.out
