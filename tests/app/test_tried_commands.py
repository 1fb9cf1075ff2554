"""Commands are tried: nobody is asked before they run, and what they changed is asked about, kept or dropped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.app.running import Place, call
from tests.app.terminal import Open
from tests.conformance.confining import confinement_for

pytestmark = pytest.mark.slow

CHANGES = (
    "sed -i s/hi/hello/ a.py; mkdir -p made; for n in 1 2 3 4 5 6 7 8 9 10; do echo $n >made/$n; done; chmod +x made/1"
)
SCRIPT = [
    {"tool_calls": [call("bash", command="python3 -c 'print(6 * 7)'")]},
    {"tool_calls": [call("bash", command=CHANGES)]},
    {"text": "the end"},
]


@pytest.fixture(autouse=True)
def _tried() -> None:
    confinement_for(f"bubblewrap, {'root' if os.getuid() == 0 else 'user'}")


@pytest.mark.full
@pytest.mark.parametrize("columns", [40, 100])
def test_the_terminal_asks_about_changes_and_keeps_them(open_terminal: Open, tmp_path: Path, columns: int) -> None:
    terminal = open_terminal(SCRIPT, "go", columns=columns)
    screen = terminal.asked()
    folder = tmp_path / "project"
    assert "changed nothing" in " ".join(screen.split())
    assert not (folder / "made").exists()
    for said in ("created folder made", "1 executable: 1", "a.py", "Apply these changes?", "No, discard"):
        assert said in screen
    terminal.type("y")
    terminal.see("the end")
    assert (folder / "a.py").read_text() == 'print("hello")\n'
    assert len(list((folder / "made").iterdir())) == 10


def test_hunks_of_one_file_can_be_kept(open_terminal: Open, tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(60))
    (tmp_path / "project/list").write_text(lines)
    change = "sed -i -e 's/^5$/five/' -e 's/^50$/fifty/' list; echo more >>a.py"
    terminal = open_terminal([{"tool_calls": [call("bash", command=change)]}, {"text": "the end"}], "go")
    screen = terminal.asked()
    for said in ("Dry run: 2 files edited", "+ five", "+ fifty", "+ more"):
        assert said in screen
    assert screen.count("  list\n") == 1
    terminal.type("h")
    for number, key in enumerate("nny", 1):
        terminal.see(f"Apply hunk {number} of 3")
        terminal.settle(0.4)
        terminal.type(key)
    terminal.see("✓ Applied · 1 of 3 hunks · sed -i")
    terminal.see("the end")
    assert terminal.transcript().count("+ fifty") == 1, "the review prints nothing"
    assert (tmp_path / "project/list").read_text() == lines.replace("\n50\n", "\nfifty\n")
    assert (tmp_path / "project/a.py").read_text() == 'print("hi")\n'


def test_a_dry_run_that_met_a_hidden_file_asks_whether_to_repeat_it_and_a_no_ends_it(
    open_terminal: Open, tmp_path: Path
) -> None:
    (tmp_path / "project/tests").mkdir()
    (tmp_path / "project/tests/.env").write_text("KEY=1\n")
    (tmp_path / "project/tests/b.py").write_text("b\n")
    copies = {"tool_calls": [call("bash", command="cp -r tests copy")]}
    terminal = open_terminal([copies, copies, {"text": "the end"}], "go")
    screen = terminal.asked()
    for said in (
        "? Writes copy",
        "the dry run had no access to tests/.env (may hold secrets)",
        "Run it again with the file?",
        "y   Yes, run it again with the file",
        "❯ n   No, discard the dry run",
    ):
        assert said in screen
    terminal.type("n")
    terminal.see(r"✗ Declined · cp -r tests copy\n(.|\n)*Run it again with")
    assert "Apply these changes" not in terminal.asked()
    terminal.type("y")
    terminal.see("✓ Dry run again · cp -r tests copy")
    terminal.see("Dry run: 2 files created(.|\n)*Apply these changes")
    terminal.asked()
    terminal.type("y")
    terminal.see("the end")
    assert (tmp_path / "project/copy/.env").read_text() == "KEY=1\n"
    terminal.leave()


def test_a_review_has_the_whole_command_and_the_end_of_its_output(open_terminal: Open, tmp_path: Path) -> None:
    command = "for n in $(seq 30); do echo line $n; done\necho 'FATAL: broken'; echo x >made; \\\n exit 3"
    terminal = open_terminal([{"tool_calls": [call("bash", command=command)]}, {"text": "the end"}], "go")
    screen = terminal.asked()
    for line in (*command.split("\n"), "  │ line 22", "  │ FATAL: broken", "exit code 3; nothing has been applied yet"):
        assert line in screen
    assert "line 21\n" not in screen
    terminal.type("\r")
    terminal.see("✗ Discarded(.|\n)*the end")
    assert terminal.transcript().count("for n in $(seq 30)") == 2, "in the question and in the line of the answer"
    assert not (tmp_path / "project/made").exists()


SLOW = "for n in 1; do echo x >new; sleep 4; echo '#' >>a.py; done"


def test_ctrl_b_lets_a_dry_run_go_on_and_its_changes_are_asked_about_at_its_end(
    open_terminal: Open, tmp_path: Path
) -> None:
    slow = {"tool_calls": [call("bash", command=SLOW)]}
    terminal = open_terminal([slow, {"text": "went on"}, {"text": "heard"}], "go")
    folder = tmp_path / "project"
    terminal.see("sleep 4")
    terminal.settle(1)
    terminal.type("\x02")
    terminal.see(r"in the background as job_1(.|\n)*\nwent on(.|\n)*1 job")
    (folder / "a.py").write_text("mine\n")
    assert "1 file edited, 1 created" in " ".join(terminal.asked().split())
    assert not (folder / "new").exists()
    terminal.type("y")
    terminal.see("Background dry run finished: ")
    assert (folder / "a.py").read_text() == "mine\n", "it was changed meanwhile"
    assert (folder / "new").read_text() == "x\n"
    terminal.type("/undo\r")
    terminal.see("Undo\\?")
    terminal.type("\r")
    terminal.see("Undid turn")
    assert not (folder / "new").exists()
    terminal.type("and?\r")
    terminal.see("heard")
    terminal.leave()
    assert terminal.exit_code() == 0
    stored = [file.read_bytes() for file in (tmp_path / "home/state").rglob("*") if file.is_file()]
    assert any(b"The dry run in the background has finished" in content for content in stored)


def test_a_dry_run_that_the_person_stops_has_not_finished(open_terminal: Open) -> None:
    slow = {"tool_calls": [call("bash", command="for n in 1; do sleep 30; done")]}
    terminal = open_terminal([slow, {"text": "went on"}], "go")
    terminal.see("sleep 30")
    terminal.settle(1)
    terminal.type("\x02")
    terminal.see("went on(.|\n)*1 job")
    terminal.type("/stop job_1\r")
    terminal.see("Background dry run stopped: (.|\n)*changed nothing")


def test_what_a_job_reports_stands_below_the_question_that_is_open(open_terminal: Open) -> None:
    commands = ("for n in 1; do sleep 4; done", "for n in 1; do echo x >new; done")
    slow, quick = ({"tool_calls": [call("bash", command=command)]} for command in commands)
    terminal = open_terminal([slow, quick, {"text": "the end"}], "go")
    terminal.see("sleep 4")
    terminal.settle(1)
    terminal.type("\x02")
    terminal.asked()
    assert "Background dry run finished" not in terminal.settle(6)
    terminal.type("y")
    terminal.see(r"✓ Applied(.|\n)*Background dry run finished: (.|\n)*changed nothing")


def test_leaving_discards_a_dry_run_in_the_background(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"tool_calls": [call("bash", command=SLOW)]}, {"text": "went on"}], "go")
    terminal.see("sleep 4")
    terminal.settle(1)
    terminal.type("\x02")
    terminal.see("went on")
    terminal.asked()
    terminal.type("\x03\x03")
    terminal.leave()
    assert terminal.exit_code() == 0
    assert not (tmp_path / "project/new").exists()


def test_a_file_that_only_a_former_tmp_had_is_gone_and_not_asked_about(open_terminal: Open) -> None:
    lost = f"/tmp/agentcli-{os.getpid()}-lost"
    commands = (f'python3 -c \'open("{lost}", "w").write("1")\'', f"cat {lost}")
    calls = [call("bash", command=command) for command in commands] + [call("file_read", path=lost)]
    screen = open_terminal([*({"tool_calls": [one]} for one in calls), {"text": "the end"}], "go").see("the end")
    told = " ".join(screen.split())
    assert "changed nothing; /tmp is empty again for the next command" in told
    assert told.count("/tmp is new and empty for each command") == 2


def test_declining_discards_the_changes_and_the_turn_continues(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal(SCRIPT, "go")
    terminal.asked()
    terminal.type("\x1b")
    terminal.see(r"1 file edited, 10 created(.|\n)*✗ Discarded · sed -i(.|\n)*the end")
    assert not (tmp_path / "project/made").exists()


def test_one_shot_tells_the_output_and_drops_the_files(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.folder / "a.py").write_text("hi")
    flags = ("-m", place.script(*SCRIPT), "-p", "go", "--output-format", "json", "--fail-on-denial")
    ran = place.run(*flags)
    assert ran.code == 56
    assert [(denial["tool_name"], denial["kind"]) for denial in ran.result["permission_denials"]] == [
        ("bash", "dropped")
    ]
    assert not (place.folder / "made").exists()
    kept = place.run(*flags, "--permission-mode", "acceptEdits")
    assert (kept.code, kept.result["permission_denials"]) == (0, [])
    assert (place.folder / "a.py").read_text() == "hello"


def test_the_next_start_removes_what_a_killed_dry_run_was_mounted_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    subprocess.run(["git", "init", "-q", str(place.folder)], check=True)
    before = sorted(place.folder.rglob("*"))
    slow = {"tool_calls": [call("bash", command="for n in 1; do echo x >x; sleep 60; done")]}
    held = "state/tries/try-*/1/overlay-*/upper/x"
    with place.start("-m", place.script(slow, {"text": "the end"}), "-p", "go") as running:
        while not list(place.home.glob(held)):
            assert not running.has_ended
        quick = {"tool_calls": [call("bash", command="for n in 1; do echo; done")]}
        place.run("-m", place.script(quick, {"text": "."}), "-p", "go", "--no-session")
        assert list(place.home.glob(held))  # a start leaves what runs alone
        running.signal(signal.SIGKILL)
        assert running.left().code == -signal.SIGKILL
    assert (place.folder / ".git/commondir").is_file()
    resumed = place.run("-m", place.script({"text": "{{last_result}}"}), "-p", "go on", "--continue")
    assert resumed.out.startswith("Changes discarded: ")
    assert "kept" not in resumed.err
    assert not list(place.home.glob("state/tries/try-*/1"))
    assert sorted(place.folder.rglob("*")) == before


STARTS = {
    "one-shot": ("-p", "go"),
    "stream-json": ("-p", "go", "--output-format", "stream-json"),
    "tools run": ("tools", "run", "think", '{"thought": "x"}'),
    "doctor": ("doctor",),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", STARTS)
def test_any_start_finishes_a_keep_that_was_killed_and_says_so(tmp_path: Path, how: str) -> None:
    place = Place(tmp_path)
    for number in range(400):
        (place.folder / f"f{number}").write_text("old\n")
    for name in ("gone", "tool"):
        (place.folder / name).touch()
    command = "sed -i s/old/new/ f*; rm gone; chmod 700 tool; mkdir -p big/deep; touch big/deep/{1..40}"
    change = {"tool_calls": [call("bash", command=command)]}
    flags = ("-m", place.script(change, {"text": "the end"}), "-p", "go", "--permission-mode", "acceptEdits")
    place.kill_once(lambda: list(place.home.glob("state/tries/*/plan")), *flags)
    assert {(place.folder / f"f{number}").read_text() for number in range(400)} <= {"old\n", "new\n"}
    model = () if how in ("tools run", "doctor") else ("-m", place.script({"text": "the end"}))
    ran = place.run(*STARTS[how], *model)
    assert "they are complete now: " in (ran.out if how == "doctor" else ran.err)
    assert {(place.folder / f"f{number}").read_text() for number in range(400)} == {"new\n"}
    assert not (place.folder / "gone").exists()
    assert (place.folder / "tool").stat().st_mode & 0o777 == 0o700
    assert len(list((place.folder / "big/deep").iterdir())) == 40
    assert not list(place.home.glob("state/tries/try-*/plan"))


def test_changes_that_a_later_start_finishes_are_undone_with_the_killed_turn(place: Place) -> None:
    (place.folder / "mine.txt").write_text("mine\n")
    command = "for n in $(seq 200); do echo $n >f$n; done; echo more >>mine.txt"
    flags = ("-p", "go", "--permission-mode", "auto")
    script = place.script({"tool_calls": [call("bash", command=command)]})
    place.kill_once(lambda: list(place.home.glob("state/tries/*/plan")), *flags, "-m", script)
    time.sleep(2)  # what changes so much later was not the doing of the killed process
    place.run("-p", "other", "-m", place.script({"text": "the end"}))  # another session finishes it
    assert len(list(place.folder.glob("f*"))) == 200
    (place.folder / "f7").write_text("the person's\n")
    ran = place.run("undo", "--yes")
    assert ran.code == 0, ran.out
    assert [path.name for path in place.folder.glob("f*")] == ["f7"]
    assert (place.folder / "mine.txt").read_text() == "mine\n"


RULED = {
    "python3": """python3 -c 'open("vendor/x.c", "w").write("y")'; echo 2 >b.txt; true $(true)""",
    "a loop": "for f in vendor/x.c; do echo y >$f; done; echo 2 >b.txt",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", RULED.values(), ids=RULED)
@pytest.mark.parametrize("mode", ["default", "acceptEdits", "auto", "bypassPermissions"])
def test_a_rule_about_files_holds_for_what_a_command_did(place: Place, mode: str, command: str) -> None:
    (place.folder / "vendor").mkdir()
    for name in ("vendor/x.c", "b.txt"):
        (place.folder / name).write_text("x\n")
    replies = ({"tool_calls": [call("bash", command=command)]}, {"text": "{{last_result}}"})
    arguments = ("-p", "go", "--output-format", "json", "--permission-mode", mode, "--deny", "Edit(vendor/**)")
    ran = place.run("-m", place.script(*replies), *arguments)
    assert (place.folder / "vendor/x.c").read_text() == "x\n"
    assert (place.folder / "b.txt").read_text() == ("x\n" if mode == "default" else "2\n")
    why = "no one can approve them" if mode == "default" else "the rule file_edit(vendor/**) denies it"
    assert why in ran.result["result"]
    assert [denial["kind"] for denial in ran.result["permission_denials"]] == ["dropped"]


def test_a_rule_that_asks_about_files_asks_about_what_a_command_did(open_terminal: Open, tmp_path: Path) -> None:
    command = "for f in a.py b.txt; do echo '#' >>$f; done"
    script = [{"tool_calls": [call("bash", command=command)]}, {"text": "the end"}]
    asks = tmp_path / "asks.json"
    asks.write_text('{"permissions": {"ask": ["Edit(a.py)"]}}')
    terminal = open_terminal(script, "--permission-mode", "acceptEdits", "--settings", str(asks), "go")
    assert "the rule file_edit(a.py) requires approval" in " ".join(terminal.asked().split())
    terminal.type("n")
    terminal.see("✗ Discarded")
    terminal.see("the end")
    assert "#" not in (tmp_path / "project/a.py").read_text()
    assert (tmp_path / "project/b.txt").read_text() == "#\n"


@pytest.mark.parametrize("mode", ["default", "acceptEdits"])
def test_a_name_that_is_not_text_is_shown_and_kept(place: Place, mode: str) -> None:
    made = rb"printf x >$'bad\377name'; ln -s $'to\376' link; for i in 1; do :; done"
    replies = ({"tool_calls": [call("bash", command=made.decode())]}, {"text": "so: {{last_result}}"})
    ran = place.run("-m", place.script(*replies), "-p", "go", "--output-format", "json", "--permission-mode", mode)
    assert ran.code == 0
    assert (place.folder / os.fsdecode(b"bad\xffname")).exists() == (mode == "acceptEdits")
    assert (r"bad\xffname" in ran.result["result"]) == (mode == "default")
    assert place.run("-m", place.script({"text": "on"}), "-c", "-p", "go").out == "on\n"


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ("rm unsaved.txt", True),
        ("for f in unsaved.txt; do echo gone >$f; done", True),
        ("git clean -fdq", True),
        ("python3 -c 'import os; os.remove(\"a.py\")'", True),
        ("mv unsaved.txt there.txt", False),
        ("for f in a.py; do echo '# more' >>$f; done", False),
        ("rm saved.txt", False),
        ("rm *", True),
    ],
)
def test_accept_edits_asks_before_uncommitted_work_goes(
    open_terminal: Open, tmp_path: Path, command: str, asks: bool
) -> None:
    script = [{"tool_calls": [call("bash", command=command)]}, {"text": "the end"}]
    terminal = open_terminal(script, "--permission-mode", "acceptEdits")
    folder = tmp_path / "project"
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (folder / "saved.txt").write_text("saved\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (folder / "unsaved.txt").write_text("work\n")
    (folder / "a.py").write_text('print("hi")\nprint("more")\n')
    before = {file.name: file.read_text() for file in folder.glob("[a-z]*")}
    terminal.type("go\r")
    if asks:
        terminal.asked()
        assert {file.name: file.read_text() for file in folder.glob("[a-z]*")} == before
    else:
        terminal.see("the end")


def test_plan_mode_lets_a_command_see_what_it_writes_and_keeps_nothing(place: Place) -> None:
    command = 'python3 -c \'open("made", "w").write("so")\' && cat made'
    script = place.script({"tool_calls": [call("bash", command=command)]}, {"text": "It said {{last_result}}."})
    ran = place.run("-p", "go", "-m", script, "--permission-mode", "plan")
    assert "It said so" in ran.out
    assert not (place.folder / "made").exists()


def test_a_mode_that_settles_a_question_by_a_dry_run_makes_one(place: Place) -> None:
    model = place.script({"tool_calls": [call("bash", command="touch made")]}, {"text": "{{last_result}}"})
    with place.talk(model) as running:
        running.control("command", text="/permissions ask bash(touch *)")
        running.say("go")
        running.wait_for_type("system", "approval_requested")
        running.control("command", text="/permissions forget bash(touch *)")
        running.control("set_permission_mode", mode="plan")
        assert "plan mode discards all changes" in running.wait_for_type("result")["result"]
    assert not (place.folder / "made").exists()


OFFLINE = "git ls-remote origin; echo half >made"  # which host that is the text does not say, so none is opened


@pytest.mark.parametrize("answers", ["nn", "ny", "y"])
def test_a_dry_run_that_was_wanted_leads_back_to_the_decision(
    open_terminal: Open, tmp_path: Path, answers: str
) -> None:
    terminal = open_terminal([{"tool_calls": [call("bash", command=OFFLINE)]}, {"text": "{{last_result}} END"}], "go")
    terminal.asked()
    terminal.type("t")
    screen = " ".join(terminal.see("for real").split())
    assert "The dry run had no network; run it for real?" in screen
    assert "The dry run printed: fatal" in screen
    made = tmp_path / "project/made"
    terminal.asked()
    assert not made.exists()
    terminal.type(answers[0])
    if answers[1:]:
        screen = terminal.see("Apply these changes")
        assert "it had no network" in screen
        assert "❯ n" in screen, "what it made may be broken"
        terminal.asked()
        terminal.type(answers[1])
    screen = " ".join(terminal.see("END").split())
    assert made.exists() == ("y" in answers)
    assert ("The user let it run as a dry run only, which had no network." in screen) == (answers != "y")


def test_a_wanted_dry_run_that_failed_is_no_result(open_terminal: Open) -> None:
    command = "curl -sS http://127.0.0.1:9/"
    terminal = open_terminal([{"tool_calls": [call("bash", command=command)]}, {"text": "{{last_result}} END"}], "go")
    terminal.asked()
    terminal.type("t")
    assert "The dry run failed (exit 7), changed nothing, could reach 127.0.0.1:9; run it" in " ".join(
        terminal.see("for real").split()
    )
    terminal.asked()
    terminal.type("n")
    assert "as a dry run only" in " ".join(terminal.see("END").split())


def test_a_server_that_a_job_runs_is_reached_by_a_command_that_names_its_port(open_terminal: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as any_server:
        port = any_server.getsockname()[1]
    address = f"http://127.0.0.1:{port}/a.py"
    script = [
        {"tool_calls": [call("bash", command=f"python3 -m http.server {port}", background=True)]},
        {"tool_calls": [call("bash", command=f"sleep 3; curl -sS {address}")]},
        {"tool_calls": [call("bash", command=f"python3 -c 'import urllib.request as u; u.urlopen(\"{address}\")'")]},
        {"text": "{{last_result}} END"},
    ]
    terminal = open_terminal(script, "go")
    terminal.asked()
    terminal.type("y")
    terminal.see("job_1")
    assert f"Reaches 127.0.0.1:{port}" in terminal.asked()
    terminal.type("y")
    terminal.see(r'print\("hi"\)')
    screen = " ".join(terminal.see("END").split())
    assert "the sandbox has a network of its own" in screen, "nobody allowed the dry run to reach it"
    terminal.type("/sandbox host localhost\r")
    terminal.see("can now reach localhost on ports 80 and 443")
