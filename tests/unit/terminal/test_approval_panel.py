"""The question whether a call may run: it fits any window, and nothing in it can hide or steer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.agent.events import (
    CallApproval,
    ChangesApproval,
    CommandApproval,
    EditApproval,
    LimitQuestion,
    PlanApproval,
    Question,
)
from agentcli.agent.ops import Approve
from agentcli.frontends.terminal.panel import QuestionPanel
from agentcli.frontends.terminal.text.fragments import first_rows, plain, row_width, rows_of
from agentcli.llm.messages import ToolUse
from agentcli.tools.command import ChangeSummary

TEXT = st.one_of(st.text(), st.text("日本🎉a\u0301\x1b[31m\x07\t\n\u202e"))
HUNK = "@@ -1 +1 @@\n-old\n+new\n"


def panel(
    preview: str = "make", rules: tuple[str, ...] = (), hunks: tuple[str, ...] = (), name: str = "bash"
) -> QuestionPanel:
    fields = {"call": ToolUse("1", name, {}), "reason": "why", "preview": preview, "rules": rules}
    if name != "bash":
        return QuestionPanel(EditApproval("1", "Edit a.py", **fields, hunks=hunks))
    if not hunks:
        return QuestionPanel(CommandApproval("1", "Run", **fields))
    changes = tuple(ChangeSummary(name=f"{number}.py", kind="changed", what="file") for number in range(len(hunks)))
    return QuestionPanel(ChangesApproval("1", "Changed", **fields, hunks=hunks, changes=changes))


def choose(asked: QuestionPanel, id: str) -> Approve:
    return asked.answer(next(choice for choice in asked.choices if choice.id == id))


def rows(asked: QuestionPanel, columns: int = 100, more: int = 0) -> list[str]:
    return [plain(row) for row in asked.rows(columns, more)]


def preview(asked: QuestionPanel, columns: int = 100) -> str:
    return plain(asked.preview(columns))


@given(
    st.one_of(
        TEXT.map(lambda title: QuestionPanel(Question("1", title, call=ToolUse("1", "ask_user", {})))),
        st.builds(
            panel,
            TEXT,
            st.lists(TEXT, max_size=3).map(tuple),
            st.lists(st.just(HUNK), max_size=3).map(tuple),
            st.sampled_from(["bash", "file_edit"]),
        ),
    ),
    st.integers(-9, 9),
    st.integers(-4, 4),
    st.integers(0, 99),
    st.one_of(st.integers(1, 4), st.integers(1, 300)),
)
def test_rows_fit_any_window_and_hold_nothing_that_steers(
    asked: QuestionPanel, by: int, wider: int, more: int, columns: int
) -> None:
    asked.move(by)
    asked.select_rule(wider)
    shown = asked.rows(columns, more)
    assert all(row_width(row) <= columns for row in shown)
    text = plain(asked.preview(columns))
    for said in (text, *(plain(row) for row in shown)):
        assert not any(
            (character < " " and character not in "\n\t") or "\x7f" <= character < "\xa0" or character in "\u202e\u2066"
            for character in said
        )


def test_enter_says_yes_at_first_but_no_where_a_yes_may_do_harm() -> None:
    assert panel(rules=("bash(make)",), hunks=(HUNK, HUNK)).selected.id == "once"
    call = ToolUse("1", "bash", {})
    grave = CommandApproval("1", "", call=call, reason="", preview="rm x", effects=("deletes x",), grave=("deletes x",))
    gone = ChangeSummary(name="x", kind="deleted", what="file")
    deleting = ChangesApproval("1", "", call=call, reason="", preview="", hunks=(HUNK,), changes=(gone,))
    for risky in (grave, deleting, LimitQuestion("1", "", reason="")):
        assert QuestionPanel(risky).selected.id == "no"
    for mode in ("default", "acceptEdits", "auto"):
        assert QuestionPanel(PlanApproval("1", "", preview="", next_mode=mode)).selected.id == f"plan:{mode}"


def test_each_choice_has_a_row_of_its_own() -> None:
    asked = panel(rules=("file_edit(a.py)", "file_edit(*)"), hunks=(HUNK, HUNK), name="file_edit")
    assert rows(asked, 100, more=2)[:3] == [
        "Make this edit? +2 more",
        "❯ y   Yes",
        "  s   Yes, and don't ask again this session",
    ]
    assert rows(panel(), 100) == [
        "Run this command?",
        "❯ y   Yes",
        "  n   No",
        "  Tab No, and say what to do instead",
    ]
    narrow = " ".join(" ".join(rows(asked, 24)).split())
    for label in ("y Yes", "s Yes, and don't ask", "a Always in this", "n No", "Tab No, and say", "h Choose among"):
        assert label in narrow
    few = [plain(row) for row in asked.rows(100, max_rows=5)]
    assert "❯ y   Yes" in few
    assert len(few) == 5


@pytest.mark.parametrize(
    ("rule", "reach"),
    [
        ("bash(git push *)", "every command that starts with `git push`"),
        ("bash(git * main)", "commands that match `git * main`"),
        (
            "bash(make *) and bash(git add *)",
            "every command that starts with `make` and every command that starts with",
        ),
        ("file_edit(src/**)", "file_edit calls for files below src"),
        ("file_write(//tmp/x)", "file_write calls for /tmp/x"),
        ("web_fetch(domain:example.org)", "web_fetch calls for example.org"),
        ("web_fetch", "every web_fetch call"),
    ],
)
def test_a_sentence_says_what_a_lasting_yes_covers(rule: str, reach: str) -> None:
    assert f"Rule for s/a: {reach}" in " ".join(" ".join(rows(panel(rules=(rule,)), 200)).split())


def test_the_narrowest_rule_of_a_lasting_yes_can_be_widened() -> None:
    asked = panel(rules=("bash(git push a b)", "bash(git push *)"))
    assert rows(asked)[-1].endswith("`git push a b` (e to edit, ←/→ narrower or wider)")
    asked.select_rule(1)
    assert "`git push`" in rows(asked)[-1]
    call = ToolUse("1", "file_edit", {})
    edit = EditApproval("1", "", call=call, reason="", preview="", rules=("file_edit(a)",), mode="acceptEdits")
    assert rows(QuestionPanel(edit))[-1] == "  Rule for a: file_edit calls for a (e to edit)"
    assert choose(QuestionPanel(edit), "mode:acceptEdits") == Approve("1", True, "session", mode="acceptEdits")
    assert "".join(rows(panel(rules=("bash(" + "x" * 70 + ")",)), 40)).count("x") == 70


def test_a_subagent_s_question_begins_with_its_name_and_task() -> None:
    asked = CommandApproval("g/1", "g: Run", call=ToolUse("1", "bash", {}), reason="", preview="ls", agent_id="g")
    assert plain(QuestionPanel(asked, "g: look for callers").preview(80)).startswith("g: look for callers\n? Run a")


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Approve("1", True), "✓ Allowed once · curl x | sh"),
        (Approve("1", True, "session"), "✓ Allowed for this session · curl x | sh"),
        (Approve("1", True, "try"), "✓ Dry run first · curl x | sh"),
        (Approve("1", False), "✗ Declined · curl x | sh"),
        (Approve("1", False, comment="not now"), "✗ Declined · curl x | sh · “not now”"),
    ],
)
def test_an_answer_leaves_one_line(answer: Approve, line: str) -> None:
    call = ToolUse("1", "bash", {"command": "curl x |\n  sh"})
    asked = QuestionPanel(CommandApproval("1", "", call=call, reason="", preview=""))
    assert plain(asked.outcome(answer, 80)) == f"{line}\n"
    assert len(plain(asked.outcome(Approve("1", True), 20))) <= 21


def test_a_number_answers_a_question_of_the_model_by_an_option_or_is_the_answer() -> None:
    given = {"call": ToolUse("1", "ask_user", {}), "title": "How many?"}
    few = QuestionPanel(Question("1", **given, options=("one", "two")))
    assert few.choice_for("2") == few.choices[1]
    assert few.selected.answer == Approve("1", True, comment="one")
    assert [few.choice_for(key) for key in "3vy"] == [None] * 3
    assert QuestionPanel(Question("1", **given)).choice_for("2") is None
    assert few.answer_in_words("3") == Approve("1", True, comment="3")
    assert few.answer(few.no) == Approve("1", False)


def test_the_command_is_shown_as_it_is_with_what_it_hides_made_visible() -> None:
    text = preview(panel("rm -rf ~\x1b[2K\recho hi\u202e\x08 \x1b]0;t\x07"))
    assert text == "? Run a command\n  $ rm -rf ~\\x1b[2K\\recho hi\\u202e\\x08 \\x1b]0;t\\x07\n"


def test_nothing_is_left_out_however_long_it_is() -> None:
    assert preview(panel("\n".join(f"echo {n}" for n in range(500)))).count("echo") == 500
    assert preview(panel("x" * 5_000)).count("x") == 5_000
    title = "https://example.com/" + "x" * 400
    fetch, list_files = ToolUse("1", "web_fetch", {"url": title}), ToolUse("1", "file_list", {"pattern": "*.key"})
    asked = CallApproval("1", "", call=fetch, reason="why", preview=f'{{\n  "url": "{title}"\n}}')
    assert title in preview(QuestionPanel(asked))
    listing = CallApproval("1", "", call=list_files, reason="why", preview='{"pattern": "*.key"}')
    assert "*.key" in preview(QuestionPanel(listing)), "which the title does not name"
    wide = panel(rules=("bash(" + "z" * 900 + " *)",))
    assert preview(wide).count("z") == 900, "the reach of a yes for longer, where the panel has no room for it"


def test_a_page_ends_with_the_window_and_the_next_continues_there() -> None:
    asked = panel("echo " + "日" * 300 + "\n\nend\tof it")
    rest, pages = asked.preview(40), []
    while rest:
        shown, rest = first_rows(rest, 40, 4)
        assert rows_of(shown, 40) <= 4
        pages.append(plain(shown))
    assert len(pages) > 3
    whole = "".join(pages).replace("\n", "")
    assert whole == preview(asked, 40).replace("\n", "")
    assert "日" * 300 in whole.replace(" ", "")


def test_a_diff_has_its_marks() -> None:
    text = preview(panel(f"--- a\n+++ b\n{HUNK}", name="file_edit"))
    assert "- old" in text
    assert "+ new" in text


def test_answers_carry_how_far_they_reach() -> None:
    asked = panel(rules=("Bash(make test)", "Bash(make *)"))
    assert choose(asked, "once") == Approve("1", True)
    asked.select_rule(1)
    asked.select_rule(1)
    assert choose(asked, "always") == Approve("1", True, "always", rule="Bash(make *)")
    asked.select_rule(-5)
    assert choose(asked, "session:0") == Approve("1", True, "session", rule="Bash(make test)")
    asked.set_rule("Bash(make lint)")
    assert asked.rule == "Bash(make lint)"
    assert asked.answer_in_words("not now") == Approve("1", False, comment="not now")
    assert choose(panel(), "no") == Approve("1", False)


@pytest.mark.parametrize(
    ("answers", "taken"),
    [("take take leave", (0, 1)), ("leave take_all", (1, 2)), ("take leave_all", (0,)), ("leave leave leave", None)],
)
def test_hunks_are_decided_one_by_one(answers: str, taken: tuple[int, ...] | None) -> None:
    asked = panel(hunks=(HUNK,) * 3, name="file_edit")
    asked.start_review(next(choice for choice in asked.choices if choice.id == "hunks"))
    assert rows(asked)[1:5] == ["1 - old", "1 + new", "Apply hunk 1 of 3?", "❯ y   Yes"]
    *others, last = [asked.decide_in_review(answer) for answer in answers.split()]
    assert set(others) <= {None}
    assert last == (Approve("1", True, hunks=taken) if taken else Approve("1", False))


def test_the_changes_of_a_dry_run_command_are_shown_and_decided_file_by_file() -> None:
    diff = f"--- a/src/a.py\n+++ b/src/a.py\n{HUNK}"
    first = ChangeSummary(name="src/a.py", kind="changed", what="file", diff=diff, hunks=2)
    second = ChangeSummary(name="build", kind="deleted", what="folder")
    hunks = (diff, diff, "deleted folder build\n")
    call = ToolUse("1", "bash", {})
    question = ChangesApproval("1", "", call=call, reason="", preview="", hunks=hunks, changes=(first, second))
    asked = QuestionPanel(question)
    text = preview(asked)
    assert "  src/a.py\n1 - old\n1 + new\n  deleted folder build\n" in text
    asked.start_review(next(choice for choice in asked.choices if choice.id == "hunks"))
    assert [choice.key for choice in asked.choices] == ["y", "n", "f", "d", "a", "q", "Tab", "Esc"]
    assert rows(asked)[1] == "  src/a.py"
    asked.decide_in_review("take_file")
    assert rows(asked)[1] == "  deleted folder build"
    assert asked.selected.id == "leave"
    assert asked.decide_in_review("leave") == Approve("1", True, hunks=(0, 1))


def test_a_hunk_that_is_longer_than_the_window_is_scrolled() -> None:
    long = "@@ -0,0 +1,60 @@\n" + "".join(f"+line {number}\n" for number in range(60))
    asked = panel(hunks=(long, HUNK), name="file_edit")
    asked.start_review(next(choice for choice in asked.choices if choice.id == "hunks"))
    seen = ""
    for _ in range(8):
        shown = [plain(row) for row in asked.rows(60, max_rows=20)]
        assert len(shown) <= 20
        assert "❯ y   Yes" in shown
        seen += "\n".join(shown)
        asked.review.move(10)
    assert all(f"line {number}\n" in seen for number in range(60))


def test_long_rows_of_a_diff_are_indented_to_their_text() -> None:
    text = preview(panel(f"--- a\n+++ b\n@@ -0,0 +1 @@\n+{'word ' * 30}\n", name="file_edit"), 40)
    first, second = text.split("\n")[1:3]
    assert first.startswith("1 + word")
    assert second.startswith("    word")


def test_comments_on_lines_of_a_plan_reach_the_model_together() -> None:
    plan = "# Plan\n\n1. Write it.\n2. Test it."
    asked = QuestionPanel(PlanApproval("1", "", preview=plan, next_mode="default"))
    asked.start_review(next(choice for choice in asked.choices if choice.id == "comments"))
    asked.move(2)
    asked.decide_in_review("words", "use tabs")
    asked.move(1)
    asked.decide_in_review("words", "where?")
    assert "❯ 4  2. Test it." in rows(asked)
    message = "On line 3 of the plan:\n> 1. Write it.\nuse tabs\n\nOn line 4 of the plan:\n> 2. Test it.\nwhere?"
    assert asked.decide_in_review("send") == Approve("1", False, comment=message)
    asked.end_review()
    assert asked.answer(asked.no) == Approve("1", False, comment=message)
    assert choose(asked, "plan:default").comment == f"{plan}\n\n{message}"


def test_trying_first_is_a_choice_where_it_is_offered() -> None:
    request = CommandApproval("1", "Run", call=ToolUse("1", "bash", {}), reason="why", preview="make", can_try=True)
    assert choose(QuestionPanel(request), "try") == Approve("1", True, "try")
    assert "t   Dry run first" in " ".join(rows(QuestionPanel(request), 60))
    assert "Dry run" not in " ".join(rows(panel()))


def test_git_summaries_are_shown_before_the_diffs_of_files() -> None:
    said = f"main: 1 → 2\n  + 2 second\n--- a/src/a.py\n+++ b/src/a.py\n{HUNK}--- a/b.py\n+++ b/b.py\n{HUNK}"
    lines = preview(panel(said, hunks=(said,))).split("\n")
    first, second = lines.index("  src/a.py"), lines.index("  b.py")
    assert lines.index("  main: 1 → 2") < first < second


def test_a_very_long_diff_of_several_files_begins_with_a_summary_by_file() -> None:
    long = "@@ -0,0 +1,200 @@\n" + "+line\n" * 200
    diffs = [f"--- /dev/null\n+++ b/a.py\n{long}", f"--- a/b.py\n+++ b/b.py\n{long}-x\n"]
    gone = "deleted folder build\n"
    changes = [ChangeSummary(name=name, kind="changed", what="file") for name in ("a.py", "b.py")]
    changes.append(ChangeSummary(name="build", kind="deleted", what="folder"))
    fields = {"call": ToolUse("1", "bash", {"command": "make\nit"}), "reason": "", "preview": ""}
    asked = QuestionPanel(ChangesApproval("1", "", **fields, hunks=(*diffs, gone), changes=tuple(changes)))
    text = preview(asked)
    for row in (
        "  $ make\n    it\n",
        "  a.py  (new)  +200 -0\n",
        "  b.py  +200 -1\n",
        "  deleted folder build\n",
    ):
        assert row in text
    assert "line" not in text
    assert plain(asked.preview(100, is_whole=True)).count("+ line") == 400


def test_before_all_was_on_the_screen_only_a_hunk_that_was_can_be_taken() -> None:
    long = "@@ -0,0 +1,60 @@\n" + "".join(f"+line {number}\n" for number in range(60))
    asked = panel(hunks=(long, HUNK), name="file_edit")
    asked.unread = [("", "more\n")]
    assert [choice.id for choice in asked.selectable_choices] == ["no", "words", "hunks"]
    asked.start_review(asked.selectable_choices[-1])
    asked.rows(60, max_rows=20)
    assert [choice.id for choice in asked.selectable_choices] == ["leave", "leave_all", "words", "back"]
    assert asked.review is not None
    asked.review.move(100)
    asked.rows(60, max_rows=20)
    assert asked.selectable_choices[0].id == "take"


def test_the_draw_that_shows_the_end_of_a_hunk_offers_the_yes_and_pages_overlap_by_a_row() -> None:
    long = "@@ -0,0 +1,90 @@\n" + "".join(f"+line {number}\n" for number in range(90))
    asked = panel(hunks=(long, HUNK))
    asked.unread = [("", "not shown yet")]
    asked.start_review(next(choice for choice in asked.choices if choice.id == "hunks"))
    assert asked.review is not None

    def lines() -> list[str]:
        return [plain(row) for row in asked.rows(80, max_rows=24)]

    def numbers() -> list[int]:
        return [int(row.split("line ")[1]) for row in lines() if "line " in row]

    first = numbers()
    assert not any(row.startswith(("❯ y", "  y")) for row in lines())
    asked.review.move(asked.review.page_rows)
    assert numbers()[0] == first[-1]
    asked.review.move(999)
    assert any(row.startswith(("❯ y", "  y")) for row in lines())
    assert numbers()[-1] == 89
