"""What a person answers: rules for this call and its like, some hunks of a change, words for the model."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agentcli.agent.events import ApprovalSettled, Done, Event, LimitQuestion, Notice, QuestionEvent, ToolFinished
from agentcli.agent.ops import Approve, SetMode
from agentcli.agent.permissions.decide import decide, suggested_rules
from agentcli.agent.permissions.facts import find_facts
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.agent.permissions.rules import Rules, check_rule, parse_rule, parse_rules
from agentcli.agent.questions import Questions
from agentcli.conversation.entries import Result
from agentcli.errors import StorageError
from agentcli.infra.state_files import FileGrants
from tests.unit.agent.stage import Stage, answering, call, on_stage
from tests.unit.tools.bench import Bench

Folder = Path
END = {"text": "The end."}
DECLINED = "permission_denied: The user declined this call."


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def offered(bench: Bench, name: str, **given: Any) -> list[str]:
    """The rules a person is offered; each of them can hold."""
    tool = bench.tools.get(name)
    rules = list(suggested_rules(find_facts(tool, tool.parse(given), bench.workspace), "default", Rules()))
    assert not any(check_rule(part, bench.tools) for rule in rules for part in parse_rules(rule))
    return rules


# Which rules are offered.


@pytest.mark.parametrize(
    ("command", "rules"),
    [
        ("git push origin main", ["git push origin main", "git push origin *", "git push *"]),
        ("git  push origin", ["git  push origin", "git push origin", "git push *"]),
        ("sudo git one two", ["sudo git one two"]),
        ("./deploy now fast", ["./deploy now fast"]),
        (
            "git push origin main; rm x",
            [
                "git push origin main; rm x",
                "git push origin main) and bash(rm x",
                "git push origin *) and bash(rm x",
                "git push *) and bash(rm x",
            ],
        ),
        ("git push origin $(cat x)", ["git push origin $(cat x)"]),
        ("pip install *.whl", ["pip install [*].whl", "pip install *"]),
        ("for f in *; do (rm $f); done", []),
        ("cat <<E\n* [a] )\nE", ["cat <<E\n[*] [[]a] )\nE"]),
    ],
)
def test_the_rules_for_a_command_go_from_itself_to_its_subcommand(bench: Bench, command: str, rules: list[str]) -> None:
    assert offered(bench, "bash", command=command) == [f"bash({rule})" for rule in rules]


@pytest.mark.parametrize(
    ("path", "rules"),
    [
        ("src/app.py", ["(src/app.py)", "(src/**)", ""]),
        ("./src/../src/app.py", ["(src/app.py)", "(src/**)", ""]),
        ("a.py", ["(./a.py)", ""]),
        ("new/deep/[x].py", ["(new/deep/[[]x].py)", "(new/deep/**)", ""]),
    ],
)
def test_the_rules_for_an_edit_go_from_the_file_to_all(bench: Bench, path: str, rules: list[str]) -> None:
    for tool in ("file_edit", "file_write"):
        assert offered(bench, tool, path=path, content="", old_string="", new_string="") == [
            f"{tool}{rule}" for rule in rules
        ]


COMMANDS = (
    "npm install x && npm test 2>&1 ; tail -5 x|"
    "git push origin main|a  b|:*|x:*|  make  install |echo 'a b' > c|ls ()|)|(|a\\ b|é|tab\tx y|git push 'a'|"
    "cat <<E\nx\nE|\nnew\n|npm run x:*|npm run 'a*' b|docker compose up -d|kubectl get pods -n x|a(b)c|bash(x)"
).split("|")


@pytest.mark.parametrize("command", COMMANDS)
def test_running_it_again_never_asks_whichever_rule_was_taken(bench: Bench, command: str) -> None:
    tool = bench.tools.get("bash")
    arguments = tool.parse({"command": command})
    if decide(find_facts(tool, arguments, bench.workspace), "default", Rules()).outcome == "allow":
        return
    rules = offered(bench, "bash", command=command)
    # No rule speaks of what is not read.
    assert (rules == []) == (command in ("ls ()", ")", "(", "a(b)c", "bash(x)"))
    for rule in rules:
        granted = Rules(parse_rules(rule))
        assert decide(find_facts(tool, arguments, bench.workspace), "default", granted).outcome == "allow"


def test_a_rule_that_a_refusal_overrules_is_not_offered(bench: Bench) -> None:
    tool = bench.tools.get("bash")
    rules = Rules(deny=[parse_rule("bash(git push *)")])
    arguments = tool.parse({"command": "git push origin main"})
    assert suggested_rules(find_facts(tool, arguments, bench.workspace), "default", rules) == ()


# What becomes of an answer.


def pushes(*commands: str) -> list[dict[str, Any]]:
    return [{"tool_calls": [call("bash", command=c, id=f"c{n}") for n, c in enumerate(commands)]}, END]


async def answered(folder: Folder, replies: list[dict[str, Any]], *, grants: Any = None, **how: Any) -> Stage:
    """A turn whose questions were all answered so; file `a` holds `FAR` before."""
    (folder / "work").mkdir()
    (folder / "work" / "a").write_text(FAR)
    async with on_stage(folder, replies, can_ask=True, grants=grants) as stage:
        answering(stage, **how)
        assert isinstance(await stage.ask("Go"), Done)
    return stage


@pytest.mark.parametrize(
    ("commands", "rule", "asked", "notice", "granted"),
    [
        (("git push a b", "git push c"), "bash(git push *)", 1, "", True),
        (("git push a b", "git pull a b"), "bash(git push *)", 2, "does not cover this call", True),
        (("touch a", "touch b"), "bash(touch b)", 1, "does not cover this call", True),
        (("touch a",), "bash(touch", 1, "'bash(touch' is not a permission rule", False),
        (("touch a",), "Bsh(touch *)", 1, "unknown tool 'Bsh'", False),
    ],
)
async def test_a_rule_for_the_session_holds_for_what_it_covers(
    tmp_path: Folder, commands: tuple[str, ...], rule: str, asked: int, notice: str, granted: bool
) -> None:
    stage = await answered(tmp_path, pushes(*commands), allowed=True, scope="session", rule=rule)
    assert stage.count(QuestionEvent) == asked
    assert all("allowed only this once" in each.text and notice in each.text for each in stage.of(Notice))
    assert bool(stage.of(Notice)) == bool(notice)
    assert (rule in map(str, stage.session.state.rules.allow)) == granted
    assert not any("permission_denied" in str(result.content) for result in stage.results.values())


async def test_without_a_rule_the_narrowest_that_was_offered_is_granted(tmp_path: Folder) -> None:
    calls = [call("file_write", path=path, content=str(n), id=f"c{n}") for n, path in enumerate(("x", "x", "b"))]
    stage = await answered(tmp_path, [{"tool_calls": calls}, END], allowed=True, scope="session")
    first, second = stage.of(QuestionEvent)
    assert ([first.id, second.id], first.rules) == (["c0", "c2"], ("file_write(./x)", "file_write"))
    assert [str(rule) for rule in stage.session.state.rules.allow] == ["file_write(./x)", "file_write(./b)"]
    assert {rule.source for rule in stage.session.state.rules.allow} == {"session"}


@pytest.mark.parametrize("is_broken", [False, True])
async def test_always_is_kept_for_the_project_or_else_holds_for_the_session(tmp_path: Folder, is_broken: bool) -> None:
    class Broken(FileGrants):
        def add(self, rule: str) -> None:
            raise StorageError("The disk is full.")

    grants = (Broken if is_broken else FileGrants)(tmp_path / "state" / "grants.json", tmp_path / "work")
    stage = await answered(tmp_path, pushes("touch b", "touch b"), grants=grants, allowed=True, scope="always")
    (rule,) = stage.session.state.rules.allow
    assert stage.count(QuestionEvent) == 1
    assert (str(rule), rule.source) == ("bash(touch b)", "granted")
    told = ["The disk is full. The rule bash(touch b) applies only to this session."]
    assert [notice.text for notice in stage.of(Notice)] == (told if is_broken else [])
    assert grants.list() == ([] if is_broken else ["bash(touch b)"])


# Hunks.

FAR = "".join(f"line {n}\n" for n in range(30))


def two_edits() -> list[dict[str, Any]]:
    edits = [{"old_string": f"line {n}\n", "new_string": f"LINE {n}\n"} for n in (3, 15, 27)]
    return [{"tool_calls": [call("file_edit", path="a", edits=edits, id="c")]}, END]


async def test_an_edit_is_asked_hunk_by_hunk(tmp_path: Folder) -> None:
    stage = await answered(tmp_path, two_edits(), allowed=False)
    (request,) = stage.of(QuestionEvent)
    assert len(request.hunks) == 3
    assert request.preview == "--- a/a\n+++ b/a\n" + "".join(request.hunks)


async def test_only_the_chosen_hunks_are_made_and_the_others_are_reported_with_the_comment(tmp_path: Folder) -> None:
    stage = await answered(tmp_path, two_edits(), allowed=True, hunks=(0, 2), comment="15 is fine as it is")
    assert (stage.workspace / "a").read_text() == FAR.replace("line 3\n", "LINE 3\n").replace("line 27\n", "LINE 27\n")
    said = str(stage.results["c"].content)
    made, rejected = said.split("[The user applied only the change above and rejected these hunks:]\n")
    assert "+LINE 3\n" in made
    assert "LINE 15" not in made
    assert rejected.startswith("@@ -13,7 +13,7 @@\n")
    assert rejected.endswith(" line 18\nThey said: 15 is fine as it is")
    assert not stage.results["c"].is_error
    assert stage.of(ToolFinished)[0].structured["diff"].count("@@ -") == 2
    assert not stage.of(Done)[-1].denials


@pytest.mark.parametrize(
    ("how", "made", "said"),
    [
        ({"hunks": (2, 1, 0)}, 3, "--- a/a"),
        ({"hunks": (), "comment": "no"}, 0, f"{DECLINED} They said: no"),
        ({"hunks": (7,)}, 0, "permission_denied: The approval is invalid"),
        ({"hunks": (0, -1)}, 0, "permission_denied: The approval is invalid"),
        ({"scope": "try"}, 0, "permission_denied: The approval is invalid"),
    ],
)
async def test_all_hunks_are_the_whole_change_and_none_or_unknown_ones_are_a_refusal(
    tmp_path: Folder, how: dict[str, Any], made: int, said: str
) -> None:
    stage = await answered(tmp_path, two_edits(), allowed=True, **how)
    assert str(stage.results["c"].content).startswith(said)
    assert "rejected" not in str(stage.results["c"].content)
    assert (stage.workspace / "a").read_text().count("LINE") == made
    assert len(stage.of(Done)[-1].denials) == (not made)


async def test_some_of_a_rewritten_file_is_made(tmp_path: Folder) -> None:
    content = FAR.replace("line 2\n", "two\n").replace("line 28\n", "")
    calls = [call("file_read", path="a"), call("file_write", path="a", content=content, id="c")]
    stage = await answered(tmp_path, [{"tool_calls": calls}, END], allowed=True, hunks=(0,))
    assert (stage.workspace / "a").read_text() == FAR.replace("line 2\n", "two\n")
    assert "-line 28" in str(stage.results["c"].content)


# Grants that stay.


def test_grants_are_kept_by_project_in_a_file_for_the_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "state" / "grants.json"
    here, there = FileGrants(file, tmp_path / "here"), FileGrants(file, tmp_path / "there")
    assert here.list() == []
    for rule in ("bash(make)", "file_edit", "bash(make)"):
        here.add(rule)
    there.add("bash(ls)")
    assert FileGrants(file, tmp_path / "here").list() == ["bash(make)", "file_edit"]
    assert file.stat().st_mode & 0o777 == 0o600
    here.remove("bash(make)")
    here.remove("bash(nothing)")
    assert (here.list(), there.list()) == (["file_edit"], ["bash(ls)"])
    assert {path.name for path in file.parent.iterdir()} <= {"grants.json", "grants.lock"}


def test_grants_of_a_folder_that_is_not_utf_8_are_kept_apart_and_a_broken_file_stays_as_it_is(tmp_path: Path) -> None:
    file, odd = tmp_path / "grants.json", tmp_path / os.fsdecode(b"caf\xe9")
    FileGrants(file, odd).add("bash(make)")
    assert FileGrants(file, odd).list() == ["bash(make)"]
    assert FileGrants(file, tmp_path / "caf\ufffd").list() == []
    file.write_text("{")
    with pytest.raises(StorageError, match="could not be read"):
        FileGrants(file, odd).add("bash(x)")
    assert file.read_text() == "{"


# A no that ends the turn, a mode that answers, and what is kept of an answer.


async def test_declining_with_stop_ends_the_turn_and_leaves_a_valid_conversation(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, pushes("touch a", "touch b"), can_ask=True) as stage:
        answering(stage, allowed=False, stops=True)
        done = await stage.ask("Go")
        assert done.reason == "declined"
        assert stage.results["c0"].content == DECLINED
        assert stage.results["c1"].content == "Not run: another call was declined."
        assert stage.count(QuestionEvent) == 1
        assert stage.is_valid
        again = await stage.ask("And now?")
    assert again.text == "The end."


async def test_a_stop_closes_the_other_questions_without_deciding_about_their_calls() -> None:
    published: list[Event] = []
    questions = Questions(published.append)

    def decide() -> PolicyDecision:
        raise AssertionError("a decision may take long, and this one would not count")

    asking = asyncio.create_task(questions.ask(LimitQuestion("c", "Continue?", reason=""), decide))
    await asyncio.sleep(0)
    questions.settle(is_stopped=True)
    answer = await asking
    assert isinstance(answer, PolicyDecision)
    assert answer.outcome == "deny"
    assert published[1:] == [ApprovalSettled("c")]


async def test_what_waits_for_the_end_of_a_turn_waits_on_after_a_refusal_that_stops(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, pushes("touch a"), can_ask=True) as stage:
        stage.say("Go")
        request = await stage.heard(QuestionEvent)
        stage.say("Later")
        stage.submit(Approve(request.id, False, stops=True))
        await stage.ended()
        assert not stage.session.is_busy
        assert len(stage.session.state.conversation.queue.follow_ups) == 1


@pytest.mark.parametrize(
    ("mode", "content", "answer"),
    [("acceptEdits", "new\n", "allowed by mode acceptEdits"), ("plan", "old\n", ""), ("dontAsk", "old\n", "")],
)
async def test_a_mode_settles_the_question_that_it_would_not_ask(
    tmp_path: Folder, mode: str, content: str, answer: str
) -> None:
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "a.txt").write_text("old\n")
    edit = call("file_edit", path="a.txt", old_string="old", new_string="new", id="c")
    async with on_stage(tmp_path, [{"tool_calls": [edit]}, END], can_ask=True) as stage:
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(SetMode(mode))
        await stage.ended()
        assert (stage.workspace / "a.txt").read_text() == content
        assert stage.of(ApprovalSettled) == [ApprovalSettled("c")]
        (finished,) = stage.of(ToolFinished)
    assert finished.answer == answer
    assert finished.result.is_error == (mode != "acceptEdits")


@pytest.mark.parametrize(
    ("how", "told", "content"),
    [
        ({"allowed": True}, "allowed", "done"),
        ({"allowed": True, "scope": "session"}, "allowed for this session", "done"),
        ({"allowed": True, "scope": "always"}, "always allowed", "done"),
        ({"allowed": True, "comment": "go"}, "allowed · “go”", "done\n[The user allowed this call and said: go]"),
        ({"allowed": False}, "declined", "permission_denied: The user declined this call."),
        (
            {"allowed": False, "comment": "x"},
            "declined: x",
            "permission_denied: The user declined this call. They said: x",
        ),
    ],
)
async def test_the_answer_is_kept_with_the_result_and_its_words_reach_the_model(
    tmp_path: Folder, how: dict[str, Any], told: str, content: str
) -> None:
    stage = await answered(tmp_path, pushes("touch b; echo done"), **how)
    assert [finished.answer for finished in stage.of(ToolFinished)] == [told]
    assert [entry.body.answer for entry in stage.entries if isinstance(entry.body, Result)] == [told]
    assert stage.results["c0"].content == content


@pytest.mark.slow
async def test_the_time_that_the_person_took_is_not_the_call_s(tmp_path: Folder) -> None:
    async with on_stage(tmp_path, pushes("touch a"), can_ask=True) as stage:
        stage.say("Go")
        request = await stage.heard(QuestionEvent)
        await asyncio.sleep(1.5)
        stage.submit(Approve(request.id, True))
        await stage.ended()
        (finished,) = stage.of(ToolFinished)
    assert 0 < finished.duration_ms < 1_500


async def test_an_edit_can_be_allowed_by_a_switch_of_the_mode(tmp_path: Folder) -> None:
    stage = await answered(tmp_path, two_edits(), allowed=True, scope="session", mode="acceptEdits")
    assert stage.of(QuestionEvent)[0].mode == stage.session.state.mode == "acceptEdits"
    assert not stage.session.state.rules.allow
