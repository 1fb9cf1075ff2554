"""Plugins are shown before they are installed, run only as they were trusted, and bring all that they bundle."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran, call
from tests.app.terminal import Terminal

DONE = {"text": "done"}


def write(file: Path, text: str | dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return file


def plugin(root: Path, name: str = "kit", version: str = "1.0") -> Path:
    """A plugin in Claude Code's form with a part of each kind."""
    write(root / ".claude-plugin/plugin.json", {"name": name, "version": version, "description": "Helps."})
    write(root / "commands/greet.md", "---\ndescription: Greets\n---\nSay hello to $1 from ${CLAUDE_PLUGIN_ROOT}.\n")
    write(
        root / "agents/looker.md", "---\nname: looker\ndescription: Looks.\n---\nYou look at ${CLAUDE_PLUGIN_ROOT}.\n"
    )
    write(root / "skills/fold/SKILL.md", "---\nname: fold\ndescription: Folds.\n---\nFold ${CLAUDE_PLUGIN_ROOT}/a.\n")
    hook = {
        "type": "command",
        "command": 'echo "context $(cat "${CLAUDE_PLUGIN_ROOT}/word")"; touch "$CLAUDE_PLUGIN_DATA/ran"',
    }
    write(root / "hooks/hooks.json", {"hooks": {"SessionStart": [{"hooks": [hook]}]}})
    write(root / "word", "from-the-hook")
    write(root / ".mcp.json", {"mcpServers": {"files": {"command": "${CLAUDE_PLUGIN_ROOT}/serve", "args": ["--here"]}}})
    return root


@pytest.fixture
def market(place: Place) -> Path:
    """A marketplace with one plugin, which is added."""
    folder = place.folder.parent / "market"
    plugin(folder / "plugins/kit")
    entries = [{"name": "kit", "source": "./plugins/kit"}]
    write(folder / ".claude-plugin/marketplace.json", {"name": "shop", "owner": {"name": "a"}, "plugins": entries})
    assert run(place, "marketplace", "add", str(folder)).code == 0
    return folder


def run(place: Place, *words: str) -> Ran:
    return place.run("plugin", *words)


def listed(place: Place) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run(place, "list", "--json").out)
    return rows


def stream(place: Place, *replies: dict[str, Any], prompt: str = "go", flags: tuple[str, ...] = ()) -> Ran:
    ran = place.run("-p", prompt, "-m", place.script(*replies, DONE), "--output-format", "stream-json", *flags)
    assert ran.code == 0, ran.err
    return ran


def told(place: Place, ran: Ran) -> str:
    shown = place.run("sessions", "show", ran.result["session_id"], "--json")
    return json.dumps(json.loads(shown.out)["messages"], ensure_ascii=False)


def roots(place: Place) -> list[Path]:
    return list((place.home / "plugins/kit").glob("*/kit"))


def test_a_plugin_is_shown_and_then_brings_all_its_parts(place: Place, market: Path) -> None:
    refused = run(place, "install", "kit")
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert "hook: SessionStart runs `echo" in refused.out
    assert "MCP server plugin_kit_files runs:" in refused.out
    assert listed(place) == []
    assert not (place.home / "plugins/kit").exists()
    assert run(place, "install", "kit@shop", "--yes").code == 0
    assert listed(place) == [
        {
            "name": "kit",
            "version": "1.0",
            "marketplace": "shop",
            "enabled": True,
            "commands": ["/kit:greet"],
            "agents": ["kit:looker"],
            "skills": ["kit:fold"],
            "hooks": ["SessionStart"],
            "mcp_servers": ["plugin_kit_files"],
        }
    ]
    (root,) = roots(place)
    ran = stream(
        place,
        {"tool_calls": [call("skill", name="fold")]},
        {"tool_calls": [call("create_subagent", task="look", agent="looker")]},
        DONE,
        prompt="/kit:greet Ann",
    )
    (init,) = ran.of("system", "init")
    assert "plugin_kit_files" in {server["name"] for server in init["mcp_servers"]}
    text = told(place, ran)
    for part in (f"Say hello to Ann from {root}.", "context from-the-hook", f"Fold {root}/a."):
        assert part in text
    assert ran.of("system", "subagent_started")[0]["agent"] == "kit:looker"
    assert (place.home / "state/plugins/kit/ran").is_file()


def test_what_a_plugin_has_and_agentcli_does_not_use_is_named(place: Place, market: Path) -> None:
    manifest = {"name": "kit", "lspServers": {"go": {"command": "gopls"}}, "userConfig": {"key": {"type": "string"}}}
    write(market / "plugins/kit/.claude-plugin/plugin.json", manifest)
    write(market / "plugins/kit/bin/tool", "#!/bin/sh\n")
    write(market / "plugins/kit/output-styles/poet.md", "Rhyme.")
    shown = run(place, "install", "kit").out
    for part in ("lspServers", "userConfig", "bin", "output-styles"):
        assert f"not used: {part}" in shown


def test_a_changed_plugin_is_not_used_until_it_is_trusted_again(place: Place, market: Path) -> None:
    run(place, "install", "kit", "--yes")
    (root,) = roots(place)
    (root / "__pycache__").mkdir()
    (root / "__pycache__/x.pyc").write_bytes(b"what Python writes")
    assert "from-the-hook" in told(place, stream(place))
    (root / "word").write_text("other-word")
    ran = stream(place)
    assert "other-word" not in told(place, ran)
    assert "agentcli plugin enable kit" in ran.err
    assert run(place, "enable", "kit").code == 2
    assert run(place, "enable", "kit", "--yes").code == 0
    assert "context other-word" in told(place, stream(place))


def test_a_yes_is_about_the_files_that_were_shown(place: Place, market: Path) -> None:
    run(place, "install", "kit", "--yes")
    (root,) = roots(place)
    (root / "word").write_text("shown")
    with closing(Terminal(place.folder, "plugin", "enable", "kit")) as terminal:
        terminal.see("use all this")
        (root / "word").write_text("swapped")
        terminal.type("y\n")
        terminal.see("have changed")
    assert "swapped" not in told(place, stream(place))


def test_an_update_asks_again_and_a_no_keeps_the_old_version(place: Place, market: Path) -> None:
    run(place, "install", "kit", "--yes")
    assert "up to date" in run(place, "update", "kit").out
    plugin(market / "plugins/kit", version="2.0")
    (market / "plugins/kit/word").write_text("second")
    assert run(place, "update", "kit").code == 2
    assert listed(place)[0]["version"] == "1.0"
    assert "context from-the-hook" in told(place, stream(place))
    assert run(place, "update", "kit", "--yes").code == 0
    assert listed(place)[0]["version"] == "2.0"
    assert "context second" in told(place, stream(place))


def test_a_plugin_can_be_switched_off_and_removed(place: Place, market: Path) -> None:
    run(place, "install", "kit", "--yes")
    assert "Remove them first" in run(place, "marketplace", "remove", "shop").err
    assert run(place, "disable", "kit").code == 0
    assert "from-the-hook" not in told(place, stream(place))
    assert run(place, "enable", "kit").code == 0
    assert run(place, "remove", "kit").code == 0
    assert listed(place) == []
    assert not (place.home / "plugins/kit").exists()
    assert run(place, "marketplace", "remove", "shop").code == 0
    assert json.loads(run(place, "marketplace", "list", "--json").out) == []


def test_a_folder_given_by_flag_is_used_even_in_a_bare_session(place: Place) -> None:
    folder = plugin(place.folder.parent / "mine")
    ran = stream(place, {"tool_calls": [call("skill", name="kit:fold")]}, flags=("--plugin-dir", str(folder), "--bare"))
    text = told(place, ran)
    assert "context from-the-hook" in text
    assert f"Fold {folder}/a." in text
    missing = place.run("-p", "hi", "-m", place.script(DONE), "--plugin-dir", str(place.folder))
    assert missing.code == 0
    assert "is not a plugin" in missing.err


def test_agent_plugins_form_and_both_forms_together(place: Place) -> None:
    folder = plugin(place.folder.parent / "both")
    write(folder / "plugin.json", {"name": "kit", "version": "1.0", "license": "MIT"})
    write(
        folder / "mcp.json",
        {"mcpServers": {"files": {"command": "other"}, "more": {"command": "x", "cwd": "${PLUGIN_ROOT}"}}},
    )
    assert run(place, "marketplace", "add", str(folder)).code == 0  # a folder that is one plugin
    assert run(place, "install", "kit", "--yes").code == 0
    (row,) = listed(place)
    assert row["skills"] == ["kit:fold"]
    assert row["mcp_servers"] == ["plugin_kit_files", "plugin_kit_more"]


def test_entries_that_are_not_strict_say_which_skills_a_plugin_has(place: Place) -> None:
    folder = place.folder.parent / "skills-market"
    for name in ("one", "two", "three"):
        write(folder / f"skills/{name}/SKILL.md", f"---\nname: {name}\ndescription: About.\n---\nDo {name}.\n")
    entry = {"name": "pair", "source": "./", "strict": False, "skills": ["./skills/one", "./skills/two"]}
    write(folder / ".claude-plugin/marketplace.json", {"name": "m", "plugins": [entry]})
    run(place, "marketplace", "add", str(folder))
    assert run(place, "install", "pair", "--yes").code == 0
    assert listed(place)[0]["skills"] == ["pair:one", "pair:two"]


def test_a_repository_is_cloned_without_running_anything_of_it(place: Place) -> None:
    repository = plugin(place.folder.parent / "repository")
    hook = write(repository / "post-checkout", f"#!/bin/sh\ntouch {place.folder}/pwned\n")
    hook.chmod(0o755)
    git = ("git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"], ["config", "core.hooksPath", "."]):
        subprocess.run([*git, *words], check=True)
    assert run(place, "marketplace", "add", f"file://{repository}").code == 0
    assert run(place, "install", "kit", "--yes").code == 0
    (root,) = roots(place)
    assert not (root / ".git").exists()
    assert not (place.folder / "pwned").exists()
    assert run(place, "marketplace", "update").code == 0
    other = run(place, "marketplace", "add", str(repository))
    assert other.code == 2
    assert f"There is a marketplace kit already, from file://{repository}" in other.err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://127.0.0.1:9/a/b.git", "git could not get https://127.0.0.1:9/a/b.git"),
        ("--upload-pack=x", "neither a folder, nor owner/repo"),
        ("ext::sh -c touch% pwned", "neither a folder, nor owner/repo"),
        ("a/b#-x", "is not a branch, tag or commit"),
    ],
)
def test_an_address_that_gives_nothing_is_a_clear_error(place: Place, source: str, message: str) -> None:
    ran = place.run("plugin", "marketplace", "add", "--", source)
    assert ran.code != 0
    assert message in ran.err
    assert json.loads(run(place, "marketplace", "list", "--json").out) == []
    assert [path.name for path in (place.home / "plugins").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("manifest", "could not be read"),
        ("name", "is not the name of a plugin"),
        ("path", "is not a path in the plugin"),
        ("link", "leads out of its repository"),
        ("pipe", "is not a file"),
        ("entry", "leads out of its repository"),
        ("npm", "Plugins from 'npm' are not supported"),
    ],
)
def test_a_bad_plugin_is_refused_whole(place: Place, market: Path, damage: str, message: str) -> None:
    folder, entry = market / "plugins/kit", {"name": "kit", "source": "./plugins/kit"}
    match damage:
        case "manifest":
            write(folder / ".claude-plugin/plugin.json", "{")
        case "name":
            entry["name"] = "../kit"
        case "path":
            write(folder / ".claude-plugin/plugin.json", {"name": "kit", "commands": "../../.."})
        case "link":
            (folder / "skills/out").symlink_to("/etc")
        case "pipe":
            os.mkfifo(folder / "commands/pipe.md")
        case "entry":
            entry["source"] = "../../"
        case "npm":
            entry["source"] = {"source": "npm", "package": "x"}  # type: ignore[assignment]
    write(market / ".claude-plugin/marketplace.json", {"name": "shop", "plugins": [entry]})
    run(place, "marketplace", "update")
    ran = run(place, "install", entry["name"], "--yes")
    assert ran.code != 0
    assert message in ran.err
    assert listed(place) == []
    assert [path.name for path in (place.home / "plugins").iterdir() if path.is_dir()] == []


def test_what_a_killed_installation_left_is_removed_by_the_next(place: Place, market: Path) -> None:
    left = write(place.home / "plugins/.new-abc/kit/word", "half").parents[1]
    kept = write(place.home / "plugins/my-own/notes.txt", "mine")
    assert run(place, "install", "kit", "--yes").code == 0
    assert not left.exists()
    assert kept.exists()


def test_a_plugins_server_gets_no_key_of_a_model(place: Place, market: Path) -> None:
    server = {"command": "sh", "args": ["-c", "true"], "env": {"KEY": "${ANTHROPIC_API_KEY}"}}
    write(market / "plugins/kit/.mcp.json", {"mcpServers": {"files": server}})
    run(place, "install", "kit", "--yes")
    place.environment["ANTHROPIC_API_KEY"] = "sk-test"
    shown = place.run("mcp", "list")
    assert "plugin_kit_files" in shown.out
    assert "cannot use ANTHROPIC_API_KEY" in shown.out


def test_plugins_are_listed_and_switched_in_a_session(place: Place, market: Path) -> None:
    run(place, "install", "kit", "--yes")
    script = place.script(DONE)
    assert "● kit@shop" in place.run("-p", "/plugin", "-m", script).out
    assert "off in new sessions" in place.run("-p", "/plugin disable kit", "-m", script).out
    assert "○ kit@shop" in place.run("-p", "/plugin", "-m", script).out
    (root,) = roots(place)
    (root / "word").write_text("other-word")
    refused = place.run("-p", "/plugin enable kit", "-m", script)
    assert "have changed" in refused.err
    assert listed(place)[0]["enabled"] is False
