"""What is harmless, what is asked and what no mode runs; the commands stand in the text files beside this one."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from pathlib import Path

import pytest

from agentcli.safety.commands.records import WorkspaceView
from agentcli.safety.commands.walk import analyse
from tests.rows import each_row
from tests.unit.safety.commands.desk import WORKSPACE_VIEW, cases, is_readable, judged, with_verdicts

DATA = Path(__file__).parents[5] / "shared/data/commands.jsonl"


# Thousands of commands: each group is one test, which names what it did not expect.


def test_commands_that_only_read_inside_the_workspace_are_allowed() -> None:
    analyses = {command: judged(command) for command in cases("allow")}
    wrong = {command: analysis.reason for command, analysis in analyses.items() if analysis.verdict != "allow"}
    assert not wrong
    assert all(segment.verdict == "allow" for analysis in analyses.values() for segment in analysis.segments)


def test_commands_that_may_write_run_send_or_leave_run_dry_or_ask_with_a_reason() -> None:
    found = [(expected, judged(command), command) for expected, command in with_verdicts(cases("not_allowed"))]
    assert not [(expected, got.verdict, command) for expected, got, command in found if got.verdict != expected]
    assert {expected for expected, _, _ in found} == {"try", "ask"}
    assert not [command for _, got, command in found if not got.reason]


def test_a_catastrophe_is_seen_through_quotes_wrappers_and_compound_commands() -> None:
    verdicts = {command: judged(command).verdict for command in cases("block")}
    assert not {command: verdict for command, verdict in verdicts.items() if verdict != "block"}


def test_commands_that_a_person_may_want_are_not_catastrophic() -> None:
    rows = with_verdicts(cases("never_refused"))
    found = [(expected, judged(command).verdict, command) for expected, command in rows]
    assert not [row for row in found if row[0] != row[1]]
    assert {expected for expected, _ in rows} == {"allow", "try", "ask"}


@pytest.mark.parametrize(
    "command",
    [
        "z=(['y[$(touch q)]']=1)",
        "read x < f; z=([x]=1)",
        "x='y[$(touch z)]'; z+=([$x]=b)",
        "for x in 'y[$(touch z)]'; do z=([x]=1); done",
        "z=([0]=a [y]+=b)",
        "z=({[x]=1,2})",
        "z=(\\\n[x]=1)",
    ],
)
def test_the_subscript_of_an_element_may_run_a_command(command: str) -> None:
    assert judged(command).verdict == "try"


@each_row("modifier", ["l", "ll", "h", "hh", "j", "z", "t", "L", "q", "5l", "-5hh", "*l"])
def test_printf_sets_a_variable_whatever_stands_before_the_n(modifier: str) -> None:
    assert judged(f"printf '%{modifier}n' PATH; ls").verdict == "try"


@pytest.mark.parametrize(
    "program",
    [
        'BEGIN{print "a",\n"b" > "out"}',
        'BEGIN{print 1 &&\n2 > "out"}',
        '{print $1 ||\n$2 > "out"}',
        'BEGIN{printf "%s",\n"b" >> "out"}',
        'BEGIN{print "a", # c\n\n"b" > "out"}',
        'BEGIN{print "a", \\\n"b" > "out"}',
    ],
)
def test_a_print_of_awk_may_continue_behind_a_newline(program: str) -> None:
    assert judged(f"awk '{program}' f").verdict == "try"


RESPONSES = ["@args", "m.o @args", "-- @args", "$(echo @args)", "*.o", '"$x"', "{a,@args}"]


@pytest.mark.parametrize("program", ["nm", "strings", "size", "objdump -d", "readelf -h", "ar t", "c++filt"])
def test_commands_that_read_options_from_a_file_run_as_a_dry_run(program: str) -> None:
    assert not [words for words in RESPONSES if judged(f"{program} {words}").verdict != "try"]
    assert judged(f"x=@args; for y in $x; do {program} $y; done").verdict == "try"
    assert judged(f"timeout 5 {program} @args").verdict == "try"


@pytest.mark.parametrize("words", ["a?", "a[bc]", "src/*.txt", "-- a*", "$(cat f)"])
@pytest.mark.parametrize("program", ["uniq", "uniq -c", "xxd", "xxd -p", "git symbolic-ref"])
def test_what_may_become_two_operands_may_be_written(program: str, words: str) -> None:
    assert judged(f"{program} {words}").verdict == "try"
    assert judged(f"for x in {words}; do {program} $x; done").verdict == "try"


@each_row(
    "command",
    [
        "jq -n '$ ENV'",
        "jq -n '$\nENV.HOME'",
        "jq -n '$ #x\nENV'",
        "jq . f -- --arg a .env",
        "jq . f -- .env",
        "ps -u root e",
        "ps -U root eww",
        "ps --user root e",
        "ps -C top e",
        "ps -C sudo eww",
        "ps U root e",
        "ps -Co e",
        "ps -u r*",
    ],
)
def test_commands_that_show_the_environment_or_secrets_are_asked_about(command: str) -> None:
    assert judged(command).verdict == "ask"


@pytest.mark.parametrize(
    "command", ["jq -R . -- --arg a /etc/hostname", "jq . -- -L x", "jq . -- $x", "jq --arg a $x . f"]
)
def test_a_word_of_jq_that_may_be_an_option_or_a_file_runs_as_a_dry_run(command: str) -> None:
    assert judged(command).verdict == "try"


@pytest.mark.parametrize(
    "command",
    [
        "grep .e*",
        "grep id_*",
        "rg .e*",
        "zgrep .e* a.gz",
        "x=$(cat f); grep $x",
        "read x < f; grep $x f",
        "sed s*a*b* f",
        "find . -name *",
        "find . -newer -*",
        "find . -maxdepth [-]delet[e]",
    ],
)
def test_a_word_that_may_become_several_is_not_only_a_pattern_or_a_value(command: str) -> None:
    assert judged(command).verdict == "try"


@pytest.mark.parametrize(
    "words",
    ["dst secret.x.test", 'dst "$(cat f | base64).x.test"', "dst dead:beef", "'( dst a.b or sport = :22 )'", "dst a*"],
)
def test_ss_may_ask_the_name_servers_about_a_host(words: str) -> None:
    assert judged(f"ss -tn {words}").verdict == "try"


@each_row(
    "command",
    [
        "git foo -h",
        "git gui -h",
        "git http-backend -h",
        "git gui --help",
        "git log --help -w",
        "git --help -w log",
        "git -h --web log",
        "git log --format=%G?",
        "git log --format '%h %G? %s'",
        "git show -s --pretty=tformat:%+GK",
        'git log --format="$x"',
        'git log --pretty "$x"',
        "git reflog --format=%GG",
        "git stash list --format=%GS",
        "git for-each-ref --format='%(signature)'",
        "git branch --list --format '%(*signature:grade)'",
        "git tag --sort=signature",
        "git for-each-ref --sort -signature:grade",
        "git -c log.showSignature=true log",
        "git -c LOG.SHOWSIGNATURE=1 log",
        "rustup --version",
        "wc --files0-from=list",
        "du --files0-from list",
    ],
)
def test_commands_that_may_start_configured_programs_run_as_a_dry_run(command: str) -> None:
    assert judged(command).verdict == "try"


@pytest.mark.parametrize("command", ["terraform --version", "terraform version"])
def test_commands_that_may_call_home_are_asked_about(command: str) -> None:
    assert judged(command).verdict == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "uniq -c f",
        "sed -n '/x*/p' f",
        "find . -name *.py",
        "tr [a-z] [A-Z] < f",
        "jq '.ENV' f",
        "ps -C node -o pid",
        "git grep -h foo",
        "git log --pretty=format:'%h %an %ad %s'",
    ],
)
def test_what_looks_like_one_of_these_and_only_reads_stays_harmless(command: str) -> None:
    assert judged(command).verdict == "allow"


@pytest.mark.parametrize("command", ["r\\\nm -rf /", "ls; su\\\ndo /bin/r\\\nm -rf ~", "ba\\\nsh -c 'rm -rf /'"])
def test_a_name_over_two_lines_is_read_as_bash_joins_it(command: str) -> None:
    assert judged(command).verdict == "block"


@pytest.mark.parametrize("command", ["i\\\nf true; then ls; fi", "f\\\noo () { ls; }; foo", "a\\\n=b ls", "l\\\ns"])
def test_other_words_over_two_lines_are_tried(command: str) -> None:
    assert judged(command).verdict == "try"


def test_a_dry_run_formats_no_disk() -> None:
    assert judged("mkfs.ext4 -n /dev/sda1").verdict == "ask"
    assert judged("mkfs.ext4 -L -n /dev/sda1").verdict == "block"
    assert judged("mkfs.fat -n X /dev/sda1").verdict == "block"


def test_paths_are_resolved_from_the_shells_directory() -> None:
    below = WorkspaceView(cwd=Path("/ws/src"), roots=(Path("/ws"),), home=Path("/home/u"), is_readable=is_readable)
    assert judged("cat ../a", below).verdict == "allow"
    assert judged("cat ../../a", below).verdict == "ask"
    assert judged("cd .. && cat a", below).verdict == "allow"
    assert judged("rm -rf ../../*", below).verdict == "block"


@pytest.mark.parametrize(
    "command",
    [
        "make > /tmp/out.txt 2>&1; tail -3 /tmp/out.txt",
        "make 2>&1 | tee /tmp/log | tail; grep error /tmp/log",
        "cc -o /tmp/leak a.c && /tmp/leak",
        "git log >/tmp/x && wc -l </tmp/x",
    ],
)
def test_a_file_of_tmp_that_a_command_makes_for_itself_runs_as_a_dry_run(command: str) -> None:
    assert judged(command).verdict == "try"


@pytest.mark.parametrize(
    "command",
    [
        "git log > /tmp/x",
        "sh -c 'git log' > /tmp/x",
        "make 2>&1 | tee /tmp/log | tail",
        "cat /tmp/x; make > /tmp/x; cat /tmp/x",
        "cat /tmp/x > f; rm /tmp/x",
        "make > /tmp/x; cat /tmp/xy",
        "make > /tmp/x; cat /tmp/x/../../etc/passwd",
        "make > /tmp/x; cat /tmp/x.d/*",
        "make > /tmp/x$y; cat /tmp/x",
        "make > /tmp/../etc/x; cat /tmp/../etc/x",
        "make > /tmp/x; cat /tmp/x ~/.netrc",
        "rm -rf /tmp/x && mkdir /tmp/x",
    ],
)
def test_other_files_of_tmp_are_asked_about(command: str) -> None:
    assert judged(command).verdict == "ask"


def test_a_home_folder_is_protected_wherever_it_is() -> None:
    view = WorkspaceView(
        cwd=Path("/srv/p"), roots=(Path("/srv/p"),), home=Path("/srv/people/ann"), is_readable=is_readable
    )
    for command in ("rm -rf /srv/people/ann", "rm -rf ~", "rm -rf /srv/people/*", "chmod -R 0 $HOME"):
        assert judged(command, view).verdict == "block"
    assert judged("rm -rf /srv/people/ann/x", view).verdict == "ask"
    view = WorkspaceView(cwd=Path("/srv/p"), roots=(Path("/srv/p"),), home=Path("/"), is_readable=is_readable)
    assert judged("mv /* /tmp/x", view).verdict == "block"


# In rows that ask: a host, a path outside the workspace, or a secret that a command names.
NAMED = re.compile(
    r"https?://|/dev/tcp|(?<![\w.~$}`*])(/(etc|tmp|Users|some|other|root)/\w|~/)|\.env\b|ANTHROPIC_API_KEY"
)


@pytest.mark.skipif(not DATA.exists(), reason="the data are not here")
def test_every_command_of_the_corpus_gets_the_labelled_verdict() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").strip().split("\n")]
    found = [(row["expected"], analyse(row["input"], workspace=WORKSPACE_VIEW).verdict, row) for row in rows]
    # The labels do not know the verdict `try`: a command that is tried is labelled `allow` or `ask`.
    wanted = {"allow": ("allow", "try"), "ask": ("ask", "try"), "block": ("block",)}
    wrong = [
        (expected, verdict, row["input"])
        for expected, verdict, row in found
        if verdict not in wanted[expected] and not (row.get("lenient") and verdict == "allow")
    ]
    assert not wrong
    kinds = Counter((expected, verdict) for expected, verdict, _ in found)
    assert kinds["allow", "allow"] > 120
    assert kinds["block", "block"] > 50
    named = [
        (verdict, row["input"]) for expected, verdict, row in found if expected == "ask" and NAMED.search(row["input"])
    ]
    assert [command for verdict, command in named if verdict != "ask"] == []
    assert len(named) > 60


def test_a_path_is_asked_about_as_it_was_written() -> None:
    asked: list[str] = []

    def note(path: Path) -> bool:
        asked.append(posixpath.normpath(path))
        return True

    judged(
        "cd src && cat link/../a b",
        WorkspaceView(cwd=Path("/ws"), roots=(Path("/ws"),), home=Path("/home/u"), is_readable=note),
    )
    assert asked == ["/ws/src", "/ws/src/a", "/ws/src/b"]


@pytest.mark.parametrize(("command", "named"), [("git add .", "git add"), ("git stash pop", "git stash pop")])
def test_a_reason_names_the_subcommand_and_no_argument(command: str, named: str) -> None:
    assert judged(command).reason == f"{named} is not known to only read"


def test_git_in_another_folder_is_asked_about_for_that_folder() -> None:
    segments = judged("cd /other && git clean -fd; git push /more").segments
    assert [segment.reason for segment in segments] == [
        "/other may hold secrets or is outside the workspace",
        "/other may hold secrets or is outside the workspace",
        "git push reaches other machines",
    ]
