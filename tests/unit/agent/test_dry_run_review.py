"""Commands are tried: the person is asked about what they changed, and keeps all, some or nothing of it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcli.agent.events import (
    ApprovalSettled,
    Done,
    Notice,
    OutputDelta,
    QuestionEvent,
    ToolFinished,
    ToolStarted,
)
from agentcli.agent.interfaces import NEWEST, AppendedEntries
from agentcli.agent.ops import Approve, Background, Interrupt, SetMode
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import parse_rules
from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallAllowed,
    CallAsked,
    CallKept,
    CallsStarted,
    CallTried,
    Entry,
    User,
)
from agentcli.errors import StorageError
from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.backends.linux import Bubblewrap
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionFolders
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.command import DryRunLimits, Grants
from tests.conformance.confining import git
from tests.unit.agent.stage import LogAround, Stage, call, on_stage

END = {"text": "The end."}
COMMAND = "sed -i s/two/TWO/ x.txt; echo new > y.txt; rm z.txt; echo done"

Folder = Path


@asynccontextmanager
async def trying(
    folder: Path, *, mode: Mode = "default", can_ask: bool = True, tried: DryRunLimits | None = None, **how: Any
) -> AsyncIterator[Stage]:
    """A session whose model wants to run COMMAND, confined by bubblewrap."""
    (folder / "tmp").mkdir(exist_ok=True)
    confinement = choose_confinement(tmp=folder / "tmp")
    if not isinstance(confinement, Bubblewrap):
        pytest.skip(f"commands are tried in bubblewrap: {confinement.problem}")
    reply = {"tool_calls": [call("bash", id="c", **{"command": COMMAND, **how})]}
    async with on_stage(folder, [reply, END], can_ask=can_ask, mode=mode) as stage:
        limits = CommandLimits(
            profile="workspace-write",
            home=folder / "home",
            folders=SessionFolders(state=folder / "state"),
            dry_runs=tried or DryRunLimits(),
        )
        sandbox = LocalSandbox(
            [stage.workspace],
            environment={"PATH": "/usr/bin:/bin"},
            job_folder=folder / "jobs",
            limits=limits,
            choose=lambda: confinement,
        )
        stage.session.runtime.calls.workspace.sandbox = sandbox
        for name, text in (("x.txt", "one\ntwo\n"), ("z.txt", "z\n")):
            (stage.workspace / name).write_text(text)
        yield stage


@asynccontextmanager
async def asked(folder: Folder, **how: Any) -> AsyncIterator[tuple[Stage, Any]]:
    """The same, once it has asked."""
    async with trying(folder, **how) as stage:
        stage.say("Go")
        yield stage, await stage.heard(QuestionEvent)


async def unasked(folder: Folder, **how: Any) -> Stage:
    """The same, once the turn has ended without a question."""
    async with trying(folder, **how) as stage:
        await stage.ask("Go")
        assert stage.count(QuestionEvent) == 0
    return stage


async def answer(stage: Stage, allowed: bool, scope: Any = "once", **how: Any) -> None:
    """Answer the question, and wait for the end of the turn."""
    stage.submit(Approve("c", allowed, scope, **how))
    await stage.ended()


def files(stage: Stage) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(stage.workspace.iterdir())}


BEFORE = {"x.txt": "one\ntwo\n", "z.txt": "z\n"}
AFTER = {"x.txt": "one\nTWO\n", "y.txt": "new\n"}


@pytest.mark.parametrize(
    ("how", "left", "told"),
    [
        ({"allowed": True}, AFTER, "applied"),
        ({"allowed": False}, BEFORE, "discarded"),
        ({"allowed": True, "hunks": ()}, BEFORE, "discarded"),
        ({"allowed": True, "hunks": (0,)}, {**BEFORE, "x.txt": "one\nTWO\n"}, "applied 1 of 3"),
        ({"allowed": False, "comment": "not y.txt"}, BEFORE, "discarded · “not y.txt”"),
    ],
)
async def test_only_applied_changes_stay(
    tmp_path: Folder, how: dict[str, Any], left: dict[str, str], told: str
) -> None:
    async with asked(tmp_path) as (stage, request):
        assert files(stage) == BEFORE
        assert (request.kind, [change.name for change in request.changes]) == ("keep", ["x.txt", "y.txt", "z.txt"])
        assert request.reason == "nothing has been applied yet"
        await answer(stage, **how)
        assert files(stage) == left
        assert stage.count(QuestionEvent) == stage.count(Done) == 1
    finished = stage.of(ToolFinished)[0]
    kept = sorted(name for name in {*AFTER, "z.txt"} if BEFORE.get(name) != left.get(name))
    assert (finished.structured["kept"], finished.answer) == (kept, told)
    content = str(stage.results["c"].content)
    assert content == "done" if left == AFTER else content.startswith("done\n[")  # as if it had run directly
    assert ("z.txt" in content) == (left != AFTER)
    assert ("the user discarded its changes" in content) == (left == BEFORE) == stage.results["c"].is_error
    assert f"The user said: {how.get('comment', '')}" in content or "comment" not in how


async def test_parts_of_a_file_can_be_kept_and_the_model_is_reported_which_are_not(tmp_path: Folder) -> None:
    command = "sed -i -e 's/^2$/two/' -e 's/^5$/five/' -e 's/^50$/fifty/' long.txt; echo more >>x.txt"
    async with trying(tmp_path, command=command) as stage:
        lines = [str(number) for number in range(60)]
        (stage.workspace / "long.txt").write_text("\n".join(lines))
        stage.say("Go")
        request = await stage.heard(QuestionEvent)
        assert [(change.name, change.hunks) for change in request.changes] == [("long.txt", 3), ("x.txt", 1)]
        assert len(request.hunks) == 4
        assert all(hunk.startswith("--- a/long.txt\n+++ b/long.txt\n@@ ") for hunk in request.hunks[:3])
        assert request.hunks[1].count("\n+") == 2
        await answer(stage, True, hunks=(0, 2))
        kept = ["two" if line == "2" else "fifty" if line == "50" else line for line in lines]
        assert (stage.workspace / "long.txt").read_text() == "\n".join(kept)
        assert (stage.workspace / "x.txt").read_text() == BEFORE["x.txt"]
    told = str(stage.results["c"].content)
    assert "Partly applied: long.txt (2 of 3 hunks). Discarded, so not changed: x.txt." in told
    assert "-5\n+five" in told
    assert "fifty" not in told
    finished = stage.of(ToolFinished)[0]
    assert (finished.structured["kept"], finished.structured["kept_hunks"]) == (["long.txt"], {"long.txt": [0, 2]})
    assert finished.answer == "applied 1 of 2 · long.txt (2 of 3 hunks)"


async def test_a_large_new_folder_is_shown_by_its_size_and_number_of_files(tmp_path: Folder) -> None:
    code = "import os; os.mkdir('out'); [open(f'out/{n}', 'w').write('x' * 150_000) for n in range(10)]"
    async with asked(tmp_path, command=f'python3 -c "{code}"') as (stage, request):
        assert request.preview.startswith("created folder out · 10 files · 1.5 MB\n")
        await answer(stage, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "command", "is_asked"),
    [
        ("acceptEdits", "for f in src/*; do rm $f; done", True),
        ("auto", "for f in src/*; do rm $f; done", True),
        ("bypassPermissions", "for f in src/*; do rm $f; done", True),
        ("bypassPermissions", "for f in src/*; do : >$f; done", True),
        ("bypassPermissions", "for f in src; do rm -r $f; done; git commit -qam gone", True),
        ("bypassPermissions", "for f in src/?; do rm $f; done", False),
        ("bypassPermissions", "for f in src; do mv $f library; done", False),
        ("bypassPermissions", "for f in src/*; do git mv $f $f.new; done", False),
        ("auto", "for f in node_modules; do rm -r $f; done", False),
        ("acceptEdits", "for f in src/*; do echo more >>$f; done", False),
    ],
)
async def test_most_of_the_tree_goes_in_no_mode_unasked(
    tmp_path: Folder, mode: Mode, command: str, is_asked: bool
) -> None:
    async with trying(tmp_path, mode=mode, command=command) as stage:
        for folder, count in (("src", 18), ("node_modules", 60)):
            (stage.workspace / folder).mkdir()
            for number in range(count):
                (stage.workspace / folder / str(number)).write_text(f"{number}\n")
        (stage.workspace / ".gitignore").write_text("node_modules\n")
        git(stage.workspace, "init", "-q")
        git(stage.workspace, "config", "user.email", "a@example.org")
        git(stage.workspace, "add", ".")
        git(stage.workspace, "commit", "-qm", "first")
        stage.say("Go")
        if is_asked:
            request = await stage.heard(QuestionEvent)
            assert "18 of the 21 files" in "".join(request.hunks)
            assert {change.permanent_loss for change in request.changes} == {"tree"}
            await answer(stage, False)
        assert stage.count(QuestionEvent) == is_asked
        assert not is_asked or (stage.workspace / "src/7").read_text() == "7\n"


@pytest.mark.parametrize("mode", ["default", "plan", "auto"])
async def test_a_file_of_tmp_that_a_command_makes_for_itself_needs_no_question(tmp_path: Folder, mode: Mode) -> None:
    name = f"/tmp/agentcli-test-{tmp_path.name}"
    stage = await unasked(tmp_path, mode=mode, command=f"echo made >{name}; cat {name}")
    assert stage.results["c"].content == "made"
    assert not Path(name).exists()


async def test_for_this_session_is_a_rule_for_such_commands_which_then_run_directly(tmp_path: Folder) -> None:
    async with asked(tmp_path) as (stage, request):
        await answer(stage, True, "session", rule=request.rules[0])
        assert files(stage) == AFTER
        assert [str(rule) for rule in stage.session.state.rules.allow] == [request.rules[0]]


async def test_an_interrupt_while_it_asks_what_to_keep_drops_everything(tmp_path: Folder) -> None:
    async with asked(tmp_path) as (stage, _):
        stage.submit(Interrupt())
        await stage.ended()
        assert files(stage) == BEFORE


async def test_a_dry_run_that_is_interrupted_is_reported_as_one(tmp_path: Folder) -> None:
    async with trying(tmp_path, command="touch made; echo begun; sleep 30") as stage:
        stage.say("Go")
        await stage.heard(OutputDelta)
        stage.submit(Interrupt())
        await stage.ended()
        assert files(stage) == BEFORE
    told = "begun\n\n[interrupted by the user; it was a dry run, and nothing was applied]"
    assert stage.results["c"].content == told


async def test_nobody_is_asked_about_a_command_that_changes_nothing(tmp_path: Folder) -> None:
    stage = await unasked(tmp_path, command="make -v; mkdir __pycache__; exit 3")
    assert files(stage) == BEFORE
    content = str(stage.results["c"].content)
    assert content.startswith("GNU Make")
    assert content.endswith("[exit code 3]")
    assert stage.of(ToolFinished)[0].summary == "exit 3; changed nothing"


# The names are put together by a program, so that nobody can tell them from the command's text.
OBEYED = """
sed -i s/two/TWO/ x.txt
python3 -c 'import os; at = "sub/." + "vscode"; os.makedirs(at); open(at + "/tasks.json", "w").write("{}")'
"""


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("acceptEdits", {"x.txt": "one\nTWO\n", "z.txt": "z\n"}),
        ("bypassPermissions", None),  # what is read runs directly there
        ("plan", BEFORE),
        ("dontAsk", BEFORE),
    ],
)
async def test_a_mode_decides_about_what_a_command_changed(
    tmp_path: Folder, mode: Mode, left: dict[str, str] | None
) -> None:
    async with trying(tmp_path, mode=mode, can_ask=False, command=OBEYED) as stage:
        stage.say("Go")
        done = await stage.ended()
        made = (stage.workspace / "sub/.vscode/tasks.json").exists()
        if left is None:
            return
        assert {path.name: path.read_text() for path in stage.workspace.iterdir() if path.is_file()} == left
        assert not made
    assert [(denial.call.id, denial.kind) for denial in done.denials] == ([] if mode == "plan" else [("c", "dropped")])
    assert "tasks.json" in str(stage.results["c"].content)


BARE = """
echo x > plain.txt
python3 -c 'import subprocess; subprocess.run("git init -q --bare store; echo x > store/hooks/update", shell=True)'
"""


@pytest.mark.parametrize(
    ("command", "name", "other", "allowed"),
    [(OBEYED, "sub/.vscode/tasks.json", "x.txt", True), (BARE, "store", "plain.txt", False)],
)
async def test_auto_executed_files_have_their_own_question(
    tmp_path: Folder, command: str, name: str, other: str, allowed: bool
) -> None:
    async with asked(tmp_path, mode="acceptEdits", command=command) as (stage, request):
        assert [(change.name, change.is_auto_executed) for change in request.changes] == [(name, True)]
        assert '"is_obeyed":true,"loses":""' in str(msgspec.json.encode(request.changes))  # the names in JSON
        assert request.rules == ()
        await answer(stage, allowed)
        assert (stage.workspace / name).exists() == allowed
        assert (stage.workspace / other).read_text() in ("one\nTWO\n", "x\n")


@pytest.mark.parametrize(("mode", "left"), [("acceptEdits", AFTER), ("plan", BEFORE)])
async def test_a_mode_that_decides_settles_the_question(tmp_path: Folder, mode: Mode, left: dict[str, str]) -> None:
    async with asked(tmp_path) as (stage, _):
        stage.submit(SetMode(mode))
        await stage.ended()
        assert stage.count(ApprovalSettled) == 1
        assert files(stage) == left


async def test_commands_that_a_dry_run_cannot_contain_may_run_directly(tmp_path: Folder) -> None:
    many = "for i in {1..30}; do echo $i >$i; done; echo done"
    async with asked(tmp_path, command=many, tried=DryRunLimits(max_entries=20)) as (stage, request):
        assert (request.kind, len(files(stage))) == ("run", 2)
        assert "more than 20 files" in request.reason
        await answer(stage, True)
        assert len(files(stage)) == 32
    assert stage.results["c"].content == "done"


@pytest.mark.parametrize("how", [{"background": True}, {"unconfined": True}])
async def test_commands_without_a_dry_run_ask_before_they_run(tmp_path: Folder, how: dict[str, Any]) -> None:
    async with asked(tmp_path, **how) as (stage, request):
        assert (request.can_try, request.kind) == (False, "run")
        await answer(stage, False)
    assert stage.of(ToolFinished)[0].error_kind == "permission_denied"


async def test_without_dry_runs_a_command_asks_before_it_runs(tmp_path: Folder) -> None:
    async with trying(tmp_path) as stage:
        stage.session.runtime.calls.services.dry_runs = False
        stage.say("Go")
        first = await stage.heard(QuestionEvent)
        assert (first.kind, first.can_try, files(stage)) == ("run", True, BEFORE)
        stage.submit(Approve("c", True, "try"))
        second = await stage.heard(QuestionEvent, 2)
        assert (second.kind, files(stage)) == ("keep", BEFORE)
        await answer(stage, True)
        assert files(stage) == AFTER


DIED = {
    "Changes discarded": (CallTried("c"), CallAsked("c", "", "")),
    "may have partially run": (CallTried("c"), CallAsked("c", "", ""), CallAllowed("c")),
    "These changes were applied: a.py, b.py": (CallTried("c"), CallAllowed("c"), CallKept("c", ("a.py", "b.py"))),
}


@pytest.mark.parametrize("told", DIED)
async def test_the_model_is_reported_what_became_of_a_dry_run_when_the_program_died(
    tmp_path: Folder, told: str
) -> None:
    asks = Assistant(content=(ToolUse("c", "bash", {"command": COMMAND}),), provider="scripted", model="script")
    bodies = [User((Text("Go"),)), asks, CallsStarted(("c",)), *DIED[told]]
    log = [Entry(str(n), str(n - 1) if n else None, 0.0, body) for n, body in enumerate(bodies)]
    async with on_stage(tmp_path, [END], entries=log) as stage:
        await stage.ask("Go on")
    assert told in str(stage.results["c"].content)


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_host_that_a_dry_run_could_not_reach_is_asked_about(tmp_path: Folder, allowed: bool) -> None:
    script = "import os, sys; print(os.environ.get('http_proxy')); sys.exit('Could not resolve host: api.example.org')"
    (tmp_path / "work").mkdir()
    (tmp_path / "work/ask.py").write_text(script)
    async with asked(tmp_path, command="python3 ask.py; echo x >>x.txt") as (stage, request):
        assert (request.kind, request.opens) == ("run", "host")
        assert request.effects[-1] == "the dry run could not reach api.example.org"
        stage.submit(Approve("c", allowed))
        keep = await stage.heard(QuestionEvent, 2)
        assert (keep.kind, keep.changes[0].name) == ("keep", "x.txt")
        assert stage.session.runtime.calls.workspace.grants == Grants()
        await answer(stage, False, comment="no")
    proxied = not str(stage.results["c"].content).startswith("None")
    assert proxied == allowed


@pytest.mark.slow
async def test_an_interrupt_lets_what_is_being_kept_be_kept(tmp_path: Folder) -> None:
    async with trying(tmp_path, command="sed -i s/old/new/ f*") as stage:
        for number in range(300):
            (stage.workspace / f"f{number}").write_text("old\n")
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(Approve("c", True))
        while not list((tmp_path / "state/tries").glob("*/plan")):
            await asyncio.sleep(0)
        stage.submit(Interrupt())
        await stage.ended()
        assert {text for name, text in files(stage).items() if name.startswith("f")} == {"new\n"}
        assert not list((tmp_path / "state/tries").glob("*/plan"))


OUTSIDE = {
    "a file of another project": ("other/data.csv", "other/data.csv", "other/data.csv (outside the project)"),
    "a folder": ("other", "other", "other (outside the project)"),
    "a secret of the workspace": ("work/.env", "work/.env", ".env (may hold secrets)"),
    "a secret of another project": ("other/.env", "other/.env", "other/.env (may hold secrets)"),
    "through a link": ("work/link", "other/data.csv", "other/data.csv (outside the project)"),
}


def reads(folder: Folder, name: str) -> str:
    """A command whose text does not say which path it reads, which prints what is there and whether a host is near."""
    (folder / "home/other").mkdir(parents=True)
    (folder / "work").mkdir()
    (folder / "work/link").symlink_to(folder / "home/other/data.csv")
    for text in ("home/other/data.csv", "home/other/.env", "home/other/b.txt", "work/.env"):
        (folder / text).write_text(f"in {text}\n")
    path = folder / (name if name.startswith("work") else f"home/{name}")
    (folder / "work/read.py").write_text(f"""
import os, sys
path = {str(path)!r}
names = [path] if not os.path.isdir(path) else [path + "/" + name for name in sorted(os.listdir(path))]
if not names or not os.path.exists(path):
    sys.exit(f"cannot open {{path}}: No such file or directory")
for name in names:
    try:
        print(open(name).read(), end="")
    except PermissionError as error:
        print("refused", name)
        code = str(error)
        if len(names) == 1:
            sys.exit(code)
print("proxy", os.environ.get("http_proxy"))
""")
    return "python3 read.py; code=$?; echo x >>x.txt; exit $code"


@pytest.mark.slow
@pytest.mark.parametrize("what", OUTSIDE)
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_path_that_was_hidden_from_a_dry_run_is_asked_about(tmp_path: Folder, what: str, allowed: bool) -> None:
    named, real, told = OUTSIDE[what]
    async with trying(tmp_path, command=reads(tmp_path, named)) as stage:
        workspace = stage.session.runtime.calls.workspace
        workspace.grants = granted = Grants(hosts=("api.example.org",))
        stage.say("Go")
        request = await stage.heard(QuestionEvent)
        assert (request.kind, request.rules, request.opens) == ("run", (), "files" if real == "other" else "file")
        assert request.effects[0] == "writes x.txt", "what the command does comes first"
        assert request.effects[-1].startswith("the dry run had no access to ")
        assert request.effects[-1].endswith(told)
        assert bool(request.grave) == ("secrets" in told)
        stage.submit(Approve("c", allowed))
        if allowed:
            keep = await stage.heard(QuestionEvent, 2)
            assert (keep.kind, keep.changes[0].name) == ("keep", "x.txt")
            assert workspace.grants == granted
            stage.submit(Approve("c", True))
        await stage.ended()
        assert (files(stage)["x.txt"] == BEFORE["x.txt"]) == (not allowed)
        assert stage.count(QuestionEvent) == 1 + allowed, "a no ends the matter"
    content = str(stage.results["c"].content)
    assert ("The user declined to run it again with access to " in content) == (not allowed)
    assert ("in home/other/.env" in content) == (allowed and real == "other/.env")
    assert ("in home/other/data.csv" in content) == (allowed and real in ("other/data.csv", "other"))
    assert ("in home/other/b.txt" in content) == (allowed and real == "other")
    assert ("in work/.env" in content) == (allowed and real == "work/.env")
    assert ("proxy None" in content) == allowed


async def test_rm_opens_no_hidden_file_by_itself(tmp_path: Folder) -> None:
    for name in ("a/.env", "a/b/.env", "a/code.py"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text("KEY=1\n")
    async with asked(tmp_path, command="rm -rf a") as (stage, request):  # the PATH may find another rm in the workspace
        assert (request.kind, request.opens) == ("run", "files")
        await answer(stage, False)
        assert (tmp_path / "work/a/code.py").exists()


@pytest.mark.parametrize("mode", ["plan", "dontAsk", "bypassPermissions"])
async def test_modes_that_do_not_ask_open_no_hidden_path(tmp_path: Folder, mode: Mode) -> None:
    stage = await unasked(tmp_path, mode=mode, command=f"for n in 1; do {reads(tmp_path, 'other/.env')}; done")
    assert "in home" not in str(stage.results["c"].content)


@pytest.mark.slow
async def test_choices_that_no_approval_opens_are_not_offered(tmp_path: Folder) -> None:
    """agentcli's own data, what a rule refuses, what is not there, and what a command names that succeeded."""
    own = tmp_path / "state/tries"
    own.mkdir(parents=True)
    (own / "log").write_text("mine")
    command = reads(tmp_path, "other/data.csv")
    script = (tmp_path / "work/read.py").read_text()
    for path, change in ((own / "log", ""), (tmp_path / "home/none", ""), (tmp_path / "home/other/b.txt", "; true")):
        (tmp_path / "work/read.py").write_text(script.replace(str(tmp_path / "home/other/data.csv"), str(path)))
        async with asked(tmp_path, command=command.replace("; exit $code", change or "; exit $code")) as (stage, first):
            assert first.kind == "keep"
            await answer(stage, False, comment="no")
    (tmp_path / "work/read.py").write_text(script)
    async with trying(tmp_path, command=command) as stage:
        stage.session.state.rules.deny += parse_rules(f"Read(/{tmp_path}/home/other/**)")
        stage.say("Go")
        assert (await stage.heard(QuestionEvent)).kind == "keep"
        await answer(stage, False, comment="no")


class FullDisk(LogAround):
    """It cannot store that a call was allowed."""

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> AppendedEntries:
        appended = self.log.append(*bodies, parent_id=parent_id)
        if not any(isinstance(body, CallAllowed) for body in bodies):
            return appended
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(StorageError("The disk is full."))
        return AppendedEntries(appended.entries, failed)


@pytest.mark.slow
async def test_what_fails_at_the_end_of_a_dry_run_in_the_background_is_reported(tmp_path: Folder) -> None:
    async with trying(tmp_path, command="for n in 1; do sleep 1; echo new >y.txt; done") as stage:
        stage.session.runtime.log = FullDisk(stage.session.runtime.log)
        stage.say("Go")
        await stage.heard(ToolStarted)
        while not list((tmp_path / "state/tries").glob("try-*/1")):
            await asyncio.sleep(0.01)
        stage.submit(Background())
        await stage.ended()
        assert "in the background" in stage.of(ToolFinished)[0].summary
        await stage.heard(QuestionEvent)
        stage.submit(Approve("c", True))
        assert "The disk is full." in (await stage.heard(Notice)).text
        assert files(stage) == BEFORE


async def test_an_approved_change_that_cannot_be_applied_says_why(tmp_path: Folder) -> None:
    async with asked(tmp_path, command="echo more >>x.txt") as (stage, _):
        (stage.workspace / "x.txt").write_text("mine\n")
        await answer(stage, True)
    (finished,) = stage.of(ToolFinished)
    assert finished.summary == "no output; not applied: x.txt (it was changed since the command started)"
    assert finished.answer == "not applied"
    assert (stage.workspace / "x.txt").read_text() == "mine\n"


GERMAN = "Der Wert ist zu groß für den definierten Datentyp"
HAS_GERMAN = Path("/usr/share/locale/de/LC_MESSAGES/libc.mo").exists()


@pytest.mark.parametrize(
    "error",
    [
        os.strerror(errno.EOVERFLOW),
        "Error: EOVERFLOW: value too large for defined data type, open",
        pytest.param(
            GERMAN, marks=pytest.mark.skipif(not HAS_GERMAN, reason="needs the texts of the system in German")
        ),
    ],
)
async def test_a_dry_run_that_cannot_change_files_of_another_group_may_run_directly(
    tmp_path: Folder, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setenv("LANGUAGE", "de")
    fails = f"echo >team.txt; echo '{error}'; exit 4"
    async with asked(tmp_path, command=fails) as (stage, request):
        assert "cannot change files of another group" in request.reason
        await answer(stage, True)
    assert stage.results["c"].content.startswith(error)
    assert (stage.workspace / "team.txt").exists()


@pytest.mark.slow
async def test_a_server_that_was_tried_may_become_a_job(tmp_path: Folder) -> None:
    serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('up', flush=True); s.accept()"
    (tmp_path / "work").mkdir()
    (tmp_path / "work/serve.py").write_text(serve)
    async with asked(tmp_path, command="python3 serve.py") as (stage, request):
        assert "listens on" in request.reason
        assert "job" in request.reason
        await answer(stage, True)
        assert len(stage.session.runtime.calls.workspace.sandbox.jobs.list()) == 1
    assert "Started job" in str(stage.results["c"].content)


async def test_the_model_is_reported_of_a_folder_that_is_a_cache_only_by_its_own_word(tmp_path: Folder) -> None:
    tag = "Signature: 8a477f597d28d172789f06886806bc55"
    stage = await unasked(tmp_path, command=f"mkdir out __pycache__; echo '{tag}' >out/CACHEDIR.TAG")
    assert not (stage.workspace / "out").exists()
    assert stage.results["c"].content == ("[caches, kept for later dry runs and not applied to the workspace: out]")


async def test_accept_edits_keeps_new_commits_and_asks_where_commits_would_be_lost(tmp_path: Folder) -> None:
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q")
    for name in ("first", "second"):
        git(work, "commit", "-q", "--allow-empty", "-m", name)
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m third"
    await unasked(tmp_path, mode="acceptEdits", command=commit)
    assert git(work, "log", "--format=%s").split() == ["third", "second", "first"]
    async with asked(tmp_path, mode="acceptEdits", command="git reset -q --hard HEAD~2") as (stage, request):
        assert "loses commit" in request.hunks[0]
        await answer(stage, False, comment="keep them")
    assert git(work, "log", "--format=%s").split() == ["third", "second", "first"]
