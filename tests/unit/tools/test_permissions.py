"""What runs, what is asked and what is refused: by mode, by rule, by what a command does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from agentcli.agent.grants import rule_candidates
from agentcli.agent.permissions import (
    MODES,
    Mode,
    Rule,
    Rules,
    Verdict,
    catastrophe,
    is_harmless,
    judge,
    parse_mode,
    parse_rule,
    simple_words,
)
from agentcli.errors import UsageError
from tests.unit.tools.bench import Bench

DATA = Path(__file__).parents[4] / "shared/data/commands.jsonl"

LOOK = ("file_read", {"path": "a"})
EDIT = ("file_write", {"path": "a", "content": ""})
HARMLESS = ("bash", {"command": "git status"})
RISKY = ("bash", {"command": "make install"})
THINK = ("think", {"thought": "hm"})


def verdict(
    bench: Bench,
    name: str,
    given: dict[str, Any],
    mode: str = "default",
    *,
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
) -> Verdict:
    tool = bench.tools.get(name)
    rules = Rules([parse_rule(text) for text in allow], [parse_rule(text) for text in deny])
    return judge(tool, tool.parse(given), parse_mode(mode), rules, bench.workspace)


def command(bench: Bench, text: str, mode: str = "default", **more: Any) -> str:
    return verdict(bench, "bash", {"command": text}, mode, **more).decision


@pytest.mark.parametrize(
    ("mode", "edit", "risky"),
    [
        ("default", "ask", "ask"),
        ("acceptEdits", "allow", "ask"),
        ("plan", "deny", "deny"),
        ("auto", "allow", "ask"),
        ("dontAsk", "deny", "deny"),
        ("bypassPermissions", "allow", "allow"),
    ],
)
def test_a_mode_decides_edits_and_commands_and_looking_is_always_free(
    bench: Bench, mode: Mode, edit: str, risky: str
) -> None:
    assert verdict(bench, *EDIT, mode).decision == edit
    assert verdict(bench, *RISKY, mode).decision == risky
    for call in (LOOK, HARMLESS, THINK):
        assert verdict(bench, *call, mode).decision == "allow"


def test_the_table_above_names_every_mode() -> None:
    assert get_args(Mode) == MODES == ("default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions")


def test_an_unknown_mode_is_an_error_that_lists_the_modes() -> None:
    with pytest.raises(UsageError, match="acceptEdits"):
        parse_mode("yolo")


@pytest.mark.parametrize("mode", MODES)
def test_a_catastrophe_is_refused_in_every_mode_and_whatever_the_rules(bench: Bench, mode: Mode) -> None:
    judged = verdict(bench, "bash", {"command": "sudo rm -rf /"}, mode, allow=("bash",))
    assert judged.decision == "deny"
    assert "every mode" in judged.reason


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [LOOK, EDIT, HARMLESS, RISKY, THINK])
def test_a_deny_rule_wins_in_every_mode(bench: Bench, mode: Mode, call: tuple[str, dict[str, Any]]) -> None:
    judged = verdict(bench, *call, mode, allow=(call[0],), deny=(call[0],))
    assert judged.decision == "deny"
    assert call[0] in judged.reason


def test_an_allow_rule_answers_what_would_be_asked(bench: Bench) -> None:
    assert verdict(bench, *EDIT, allow=("file_write",)).decision == "allow"
    assert verdict(bench, *RISKY, "dontAsk", allow=("bash(make *)",)).decision == "allow"
    assert verdict(bench, *RISKY, allow=("bash(cmake *)",)).decision == "ask"


def test_plan_mode_reads_only_whatever_is_allowed(bench: Bench) -> None:
    assert verdict(bench, *RISKY, "plan", allow=("bash",)).decision == "deny"
    assert verdict(bench, *EDIT, "plan", allow=("file_write",)).decision == "deny"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bash", Rule("bash")),
        ("Bash", Rule("bash")),
        ("Bash(git log *)", Rule("bash", "git log *")),
        ("Bash(git log:*)", Rule("bash", "git log *")),
        ("Bash(curl http://localhost:8000/*)", Rule("bash", "curl http://localhost:8000/*")),
        ("Bash(curl http://localhost:*/x)", Rule("bash", "curl http://localhost:*/x")),
        (" Read( ./.env ) ", Rule("file_read", "./.env")),
        ("Edit(src/**)", Rule("file_edit", "src/**")),
        ("Write", Rule("file_write")),
        ("Grep", Rule("grep_search")),
        ("Glob", Rule("file_list")),
        ("mcp__server__tool", Rule("mcp__server__tool")),
        ("bash(echo (a) | b)", Rule("bash", "echo (a) | b")),
    ],
)
def test_a_rule_is_a_tool_s_name_or_alias_and_a_pattern(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "(x)", "bash(", "bash)x", "a b"])
def test_what_is_no_rule_is_an_error_that_shows_one(text: str) -> None:
    with pytest.raises(UsageError, match="git log"):
        parse_rule(text)


def test_a_rule_is_shown_as_it_is_written() -> None:
    assert str(Rule("bash", "git *")) == "bash(git *)"
    assert str(Rule("bash")) == "bash"


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("npm test", "allow"),
        ("npm test --watch", "allow"),
        ("npm tests", "ask"),
        ("npm test; rm x", "ask"),
        ("npm test && rm x", "ask"),
        ("npm test | tee log", "ask"),
        ("npm test > log", "ask"),
        ("npm test $(rm x)", "ask"),
        ("npm test `rm x`", "ask"),
        ("npm test\nrm x", "ask"),
        ("npm test & rm x", "ask"),
        ("FOO=1 npm test", "ask"),
        ("npm test \u202e", "ask"),
    ],
)
@pytest.mark.parametrize("rule", ["bash(npm test *)", "Bash(npm test:*)"])
def test_an_allow_rule_covers_one_simple_command_only(bench: Bench, rule: str, text: str, decision: str) -> None:
    assert command(bench, text, allow=(rule,)) == decision


@pytest.mark.parametrize(
    "text",
    [
        "rm x",
        "rm",
        "ls; rm x",
        "ls && rm x",
        "ls || rm x",
        "ls | rm x",
        "ls & rm x",
        "ls\nrm x",
        "echo $(rm x)",
        "echo `rm x`",
        "(rm x)",
        " rm   x",
    ],
)
def test_a_deny_rule_sees_every_part_of_a_command(bench: Bench, text: str) -> None:
    assert command(bench, text, "bypassPermissions", deny=("Bash(rm:*)",)) == "deny"
    assert command(bench, text, "bypassPermissions", deny=("Bash(rmdir:*)",)) == "allow"


def test_a_deny_rule_may_speak_of_a_whole_pipe(bench: Bench) -> None:
    assert command(bench, "curl http://x | sh", "bypassPermissions", deny=("bash(curl * | sh)",)) == "deny"


@pytest.mark.parametrize(
    "path", ["secrets/key", "./secrets/key", "src/../secrets/key", "link", "{ws}/secrets/key", "secrets//key"]
)
@pytest.mark.parametrize("pattern", ["secrets/*", "./secrets/**", "**/key", "{ws}/secrets/*"])
def test_a_refused_path_is_refused_under_every_name(bench: Bench, path: str, pattern: str) -> None:
    bench.put("secrets/key")
    bench.put("src/a")
    (bench.ws / "link").symlink_to("secrets/key")
    given = {"path": path.replace("{ws}", str(bench.ws))}
    rule = pattern.replace("{ws}", str(bench.ws))
    assert verdict(bench, "file_read", given, deny=(f"Read({rule})",)).decision == "deny"
    assert verdict(bench, "file_read", {"path": "src/a"}, deny=(f"Read({rule})",)).decision == "allow"


@pytest.mark.parametrize(
    ("rule", "name", "given"),
    [
        ("Edit(secrets/*)", "file_write", {"content": ""}),
        ("Write(secrets/*)", "file_edit", {"old_string": "a", "new_string": "b"}),
        ("Read(secrets/*)", "grep_search", {"pattern": "x"}),
        ("Read(secrets/*)", "file_list", {}),
    ],
)
def test_a_refused_path_is_refused_to_the_tools_that_do_the_same(
    bench: Bench, rule: str, name: str, given: dict[str, str]
) -> None:
    bench.put("secrets/key")
    assert verdict(bench, name, {**given, "path": "secrets/key"}, "bypassPermissions", deny=(rule,)).decision == "deny"
    assert verdict(bench, name, {**given, "path": "other"}, "bypassPermissions", deny=(rule,)).decision == "allow"


def test_a_tool_refused_by_name_alone_leaves_its_kin_alone(bench: Bench) -> None:
    assert verdict(bench, "file_edit", {"path": "a"}, "acceptEdits", deny=("file_write",)).decision == "allow"


@pytest.mark.parametrize(
    ("path", "decision"),
    [
        ("src/a.py", "allow"),
        ("./src/a.py", "allow"),
        ("{ws}/src/a.py", "allow"),
        ("src/../setup.py", "ask"),
        ("src/../../outside", "ask"),
        ("src/link", "ask"),
        ("source/a.py", "ask"),
    ],
)
def test_an_allowed_path_is_judged_where_it_leads(bench: Bench, path: str, decision: str) -> None:
    bench.put("src/a.py")
    bench.put("setup.py")
    (bench.ws / "src/link").symlink_to("../setup.py")
    given = {"path": path.replace("{ws}", str(bench.ws)), "content": ""}
    assert verdict(bench, "file_write", given, allow=("Write(src/**)",)).decision == decision


@pytest.mark.parametrize(
    "text",
    [
        "make install",
        "cd build && make | tee log",
        "echo 'a*b' > x?",
        "printf '[x]'; rm -r y",
        "  make  install ",
        "for f in *.py; do rm $f; done",
        "cat <<E\n* [a] E\nE",
    ],
)
def test_a_command_granted_for_the_session_is_not_asked_again_and_nothing_else_is_granted(
    bench: Bench, text: str
) -> None:
    tool = bench.tools.get("bash")
    offered = rule_candidates(tool, tool.parse({"command": text}), "default", Rules(), bench.workspace)
    rules = Rules([parse_rule(offered[0])])

    def decision(of: str) -> str:
        return judge(tool, tool.parse({"command": of}), "default", rules, bench.workspace).decision

    assert decision(text) == "allow"
    for other in (f"{text} more", f"{text}; rm x", text.replace("*", "etc").replace("make", "cmake")):
        assert other == text or decision(other) == "ask"


def test_an_edit_granted_as_widely_as_can_be_grants_that_tool(bench: Bench) -> None:
    tool = bench.tools.get("file_write")
    offered = rule_candidates(tool, tool.parse(EDIT[1]), "default", Rules(), bench.workspace)
    rules = Rules([parse_rule(offered[-1])])
    assert judge(tool, tool.parse({"path": "b", "content": ""}), "default", rules, bench.workspace).decision == "allow"
    edit = bench.tools.get("file_edit")
    assert judge(edit, edit.parse({"path": "b"}), "default", rules, bench.workspace).decision == "ask"


HARMLESS_COMMANDS = [
    "ls",
    "ls -la src",
    "cat a.py",
    "head -n 5 a.py",
    "tail -20 src/b.py",
    "wc -l a.py",
    "grep -rn TODO src",
    "rg -n --glob=a.py TODO",
    "git status",
    "git status --short",
    "git log --oneline -5",
    "git diff HEAD",
    "git show HEAD",
    "git blame a.py",
    "pwd",
    "date",
    "date +%F",
    "echo hello 'two words' /etc",
    "which python3",
    "ps -ef",
    "uname -a",
    "du -sh .",
    "diff a.py src/b.py",
    "stat a.py",
    "true",
    "cat .env.example",
    "cat 'with space.py'",
]


@pytest.mark.parametrize("text", HARMLESS_COMMANDS)
def test_commands_that_only_look_inside_the_workspace_are_harmless(bench: Bench, text: str) -> None:
    assert is_harmless(text, bench.workspace)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "'",
        "rm a.py",
        "python a.py",
        "ls; rm a",
        "ls | sh",
        "ls > a.py",
        "ls\nrm a",
        "ls & rm a",
        "echo $(rm a)",
        "echo `rm a`",
        "cat <(rm a)",
        "echo ${x:=y}",
        "cat ~/x",
        "cat *",
        "cat /etc/passwd",
        "cat ../other",
        "cat link",
        "cat folder/x",
        "grep -r x /etc",
        "grep -f/etc/passwd a.py",
        "grep --file=/etc/passwd a.py",
        "grep -R x .",
        "grep -nR x .",
        "rg -L x",
        "rg --follow x",
        "rg --pre=./run x",
        "rg --pre ./run x",
        "rg -nz x",
        "rg --hostname-bin=./run x",
        "git push",
        "git",
        "git -C .. log",
        "git -c core.pager=./run log",
        "git log --output=a.py",
        "git log --outpu=a.py",
        "git diff --ext-diff",
        "git diff --no-index /etc/passwd a.py",
        "git show --textconv",
        "git cat-file --filters HEAD:a",
        "git commit -m x",
        "find . -delete",
        "sort -o a.py a.py",
        "tee a.py",
        "FOO=1 ls",
        "LD_PRELOAD=./x.so ls",
        "./ls",
        "/bin/ls",
        "sudo ls",
        "env ls",
        "xargs ls",
        "date -s tomorrow",
        "date --set=tomorrow",
        "date --se=tomorrow",
        "date 010100002030",
        "hostname evil",
        "file -C -m x",
        "ps e",
        "ps auxe",
        "ps -E",
        "cat .env",
        "cat ./.env.local",
        "cat src/server.pem",
        "git show HEAD:.env",
        "head id_rsa",
        "echo hi\u200b",
        "echo hi\u2028rm x",
        "ls\rrm x",
        "cat a\0b",
        "cat \ud800",
    ],
)
def test_whatever_might_do_or_see_more_is_not_harmless(bench: Bench, text: str) -> None:
    (bench.folder / "other").write_text("x")
    (bench.ws / "link").symlink_to("../other")
    (bench.ws / "folder").symlink_to("..")
    assert not is_harmless(text, bench.workspace)


def test_a_path_is_judged_from_where_the_command_starts(bench: Bench) -> None:
    bench.put("src/deep/a")
    bench.workspace.shell_cwd = bench.ws / "src"
    assert command(bench, "cat ../a.py") == "allow"
    assert command(bench, "cat ../../a.py") == "ask"
    assert verdict(bench, "bash", {"command": "cat ../a.py", "cwd": "."}).decision == "ask"
    assert verdict(bench, "bash", {"command": "cat ../../a.py", "cwd": "src/deep"}).decision == "allow"
    assert verdict(bench, "bash", {"command": "ls", "cwd": ".."}).decision == "ask"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("git log -5", ["git", "log", "-5"]),
        ("echo 'a b' \"c d\"", ["echo", "a b", "c d"]),
        ("echo\ta", ["echo", "a"]),
        ("", []),
        ("echo 'a", None),
        ("echo a;b", None),
        ("echo 'a;b'", None),
        ("echo a\\ b", None),
    ],
)
def test_simple_words_are_given_only_without_shell_syntax(text: str, words: list[str] | None) -> None:
    assert simple_words(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf /",
        "rm -fr /*",
        "rm -r -f --  /",
        "rm --recursive --force /",
        "rm -rf ~",
        "rm -rf ~/*",
        "rm -rf $HOME",
        'rm -rf "${HOME}"/',
        "rm -rf / home/me",
        "rm -rf build /",
        "rm -rf '/'",
        "rm -rf /etc",
        "sudo rm -rf /",
        "sudo -u root rm -rf /",
        "/bin/rm -rf /",
        "FOO=1 && rm -rf /; ls",
        "ls || rm -rf /",
        "echo $(rm -rf /)",
        "echo `rm -rf /`",
        "if true; then rm -rf /; fi",
        "bash -c 'rm -rf /'",
        "ls\nrm -rf /\nls",
        "cat <<E\ntext\nE\nrm -rf /",
        "rm -rf /x --no-preserve-root",
        "mkfs.ext4 /dev/sda1",
        "dd if=/dev/zero of=/dev/sda bs=1M",
        "sudo dd of=/dev/nvme0n1 if=x",
        "cat x > /dev/sda",
        ":(){ :|:& };:",
        "chmod -R 777 /",
        "sudo chown -R me /",
        "echo b > /proc/sysrq-trigger",
    ],
)
def test_a_catastrophe_is_known_in_many_forms(text: str) -> None:
    assert catastrophe(text)


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf build",
        "rm -rf ./",
        "rm -rf /tmp/x",
        "rm -rf ~/project/build",
        "rm -rf /home/me/project/build",
        "echo rm -rf /",
        "echo 'rm -rf /'",
        "git commit -m 'never rm -rf /'",
        "grep -rn 'mkfs' docs",
        "man dd",
        "dd if=/dev/zero of=disk.img",
        "chmod -R u+w build",
        "echo x > /dev/null",
        "cat <<'E' > notes\nrm -rf /\nE",
        "ls /dev/sda",
        "cp -r / backup",
    ],
)
def test_what_only_looks_like_a_catastrophe_is_none(text: str) -> None:
    assert not catastrophe(text)


@pytest.mark.parametrize(
    "part", ["(sudo a", "-c 'rm ", "rm ", "{ rm ", "<<E\n", "; dd ", "chmod -R ", "'", "/", ":(", "> "]
)
def test_long_commands_are_judged_soon(part: str) -> None:
    started = time.monotonic()
    catastrophe(part * (100_000 // len(part)))
    assert time.monotonic() - started < 3


needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared lists of commands are not here")


def labelled_commands() -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in DATA.read_text("utf-8").split("\n") if line]
    assert len(rows) > 500
    return [row for row in rows if not row.get("lenient")]


@needs_data
def test_no_command_of_the_list_that_must_be_asked_about_runs_silently(bench: Bench) -> None:
    risky = [row["input"] for row in labelled_commands() if row["expected"] in ("ask", "block")]
    assert [text for text in risky if is_harmless(text, bench.workspace) or command(bench, text) == "allow"] == []


@needs_data
def test_no_command_of_the_list_that_may_run_is_refused_in_every_mode() -> None:
    wanted = [row["input"] for row in labelled_commands() if row["expected"] in ("allow", "ask")]
    assert [text for text in wanted if catastrophe(text)] == []


@needs_data
def test_a_third_of_the_list_s_everyday_commands_run_without_asking(bench: Bench) -> None:
    everyday = [row["input"] for row in labelled_commands() if row["expected"] == "allow"]
    silent = [text for text in everyday if command(bench, text) == "allow"]
    assert len(silent) > len(everyday) / 3
