"""The question whether a call may run: it fits any window, and nothing in it can hide or steer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentcli.agent.events import QuestionEvent
from agentcli.agent.ops import Approve
from agentcli.frontends.terminal.approval.panel import ApprovalPanel
from agentcli.frontends.terminal.text.fragments import first_rows, plain, row_width, rows_of
from agentcli.llm.messages import ToolUse
from agentcli.tools.dry_run import ChangeSummary

TEXT = st.one_of(st.text(), st.text("日本🎉a\u0301\x1b[31m\x07\t\n\u202e"))
HUNK = "@@ -1 +1 @@\n-old\n+new\n"


def panel(
    preview: str = "make", rules: tuple[str, ...] = (), hunks: tuple[str, ...] = (), name: str = "bash"
) -> ApprovalPanel:
    asked = QuestionEvent("1", ToolUse("1", name, {}), "Edit a.py", "why", preview, rules, hunks)
    if name == "bash" and hunks:
        changes = tuple(ChangeSummary(f"{number}.py", "changed", "file") for number in range(len(hunks)))
        asked = replace(asked, kind="keep", changes=changes)
    return ApprovalPanel(asked)


def rows(asked: ApprovalPanel, columns: int = 100, more: int = 0) -> list[str]:
    return [plain(row) for row in asked.rows(columns, more)]


def preview(asked: ApprovalPanel, columns: int = 100) -> str:
    return plain(asked.preview(columns))


@given(
    st.builds(
        panel,
        TEXT,
        st.lists(TEXT, max_size=3).map(tuple),
        st.lists(st.just(HUNK), max_size=3).map(tuple),
        st.sampled_from(["bash", "file_edit"]),
    ),
    st.integers(-9, 9),
    st.integers(-4, 4),
    st.integers(0, 99),
    st.one_of(st.integers(1, 4), st.integers(1, 300)),
)
def test_rows_fit_any_window_and_hold_nothing_that_steers(
    asked: ApprovalPanel, by: int, wider: int, more: int, columns: int
) -> None:
    asked.move(by)
    asked.widen(wider)
    shown = asked.rows(columns, more)
    assert all(row_width(row) <= columns for row in shown)
    text = plain(asked.preview(columns))
    for said in (text, *(plain(row) for row in shown)):
        assert not any(
            (character < " " and character not in "\n\t") or "\x7f" <= character < "\xa0" or character in "\u202e\u2066"
            for character in said
        )


def test_no_is_what_enter_gives_at_first() -> None:
    assert panel(rules=("Bash(make)",), hunks=(HUNK, HUNK)).selected == "no"
    assert "❯n no" in rows(panel())[0]


def test_a_narrow_window_shows_all_choices_in_more_rows() -> None:
    asked = panel(rules=("file_edit(a.py)", "file_edit(*)"), hunks=(HUNK, HUNK), name="file_edit")
    narrow = " ".join(rows(asked, 24))
    for label in ("y once", "s session", "a always", "n no", "Tab no, because…", "h 2 hunks"):
        assert label in narrow
    assert rows(asked, 100, more=2)[0].startswith("Allow it? +2 more  y once")


def test_a_yes_for_longer_says_what_it_covers() -> None:
    asked = panel(rules=("bash(git push a b)", "bash(git push *)"))
    assert rows(asked)[-1] == "  s, a bash(git push a b) · ←/→ narrower or wider · e edits"
    asked.widen(1)
    assert "bash(git push *)" in rows(asked)[-1]
    edit = QuestionEvent("1", ToolUse("1", "file_edit", {}), "", "", "", ("file_edit(a)",), mode="acceptEdits")
    assert rows(ApprovalPanel(edit))[-1] == "  s all edits this session · a file_edit(a) · e edits"
    assert ApprovalPanel(edit).answer("session") == Approve("1", True, "session", mode="acceptEdits")
    assert "".join(rows(panel(rules=("bash(" + "x" * 70 + ")",)), 40)).count("x") == 70


def test_of_a_trial_it_asks_what_to_keep() -> None:
    asked = panel(hunks=(HUNK, "created file x\n"))
    assert "".join(rows(asked, 100)).split() == "Keep it? y keep ❯n drop Tab drop, because… h one by one".split()


def test_the_command_is_shown_as_it_is_with_what_it_hides_made_visible() -> None:
    text = preview(panel("rm -rf ~\x1b[2K\recho hi\u202e\x08 \x1b]0;t\x07"))
    assert text == "? Run a command\n  $ rm -rf ~\\x1b[2K\\recho hi\\u202e\\x08 \\x1b]0;t\\x07\n"


def test_nothing_is_left_out_however_long_it_is() -> None:
    assert preview(panel("\n".join(f"echo {n}" for n in range(500)))).count("echo") == 500
    assert preview(panel("x" * 5_000)).count("x") == 5_000
    title = "https://example.com/" + "x" * 400
    asked = QuestionEvent("1", ToolUse("1", "web_fetch", {"url": title}), "", "why", f'{{\n  "url": "{title}"\n}}')
    assert title in preview(ApprovalPanel(asked))
    listing = QuestionEvent("1", ToolUse("1", "file_list", {"pattern": "*.key"}), "", "why", '{"pattern": "*.key"}')
    assert "*.key" in preview(ApprovalPanel(listing)), "which the title does not name"
    wide = panel(rules=("bash(" + "y" * 900 + " *)",))
    assert preview(wide).count("y") == 900, "the reach of a yes for longer, where the panel has no room for it"


def test_a_page_ends_with_the_window_and_the_next_goes_on_there() -> None:
    asked = panel("echo " + "日" * 300 + "\n\nend\tof it")
    rest, pages = asked.preview(40), []
    while rest:
        shown, rest = first_rows(rest, 40, 4)
        assert rows_of(shown, 40) <= 4
        pages.append(plain(shown))
    assert len(pages) > 3
    whole = "".join(pages).replace("\n", "")
    assert whole == preview(asked, 40).replace("\n", "")
    assert "日" * 300 in whole


def test_a_diff_has_its_marks() -> None:
    text = preview(panel(f"--- a\n+++ b\n{HUNK}", name="file_edit"))
    assert "- old" in text
    assert "+ new" in text


def test_answers_carry_how_far_they_reach() -> None:
    asked = panel(rules=("Bash(make test)", "Bash(make *)"))
    assert asked.answer("once") == Approve("1", True)
    asked.widen(1)
    asked.widen(1)
    assert asked.answer("always") == Approve("1", True, "always", rule="Bash(make *)")
    asked.widen(-5)
    assert asked.answer("session") == Approve("1", True, "session", rule="Bash(make test)")
    asked.set_rule("Bash(make lint)")
    assert asked.rule == "Bash(make lint)"
    asked.comment = "not now"
    assert asked.answer("no") == Approve("1", False, comment="not now")
    assert panel().answer("no") == Approve("1", False, stops=True)


@pytest.mark.parametrize(
    ("answers", "taken"), [([True, True, False], (0, 1)), ([False, True, False], (1,)), ([False] * 3, None)]
)
def test_hunks_are_decided_one_by_one(answers: list[bool], taken: tuple[int, ...] | None) -> None:
    asked = panel(hunks=(HUNK,) * 3, name="file_edit")
    asked.hunk = 0
    assert rows(asked)[0].startswith("Hunk 1 of 3:  y take")
    assert plain(asked.hunk_preview(80)).startswith("Hunk 1 of 3\n")
    *others, last = [asked.take_hunk(accepted=accepted) for accepted in answers]
    assert others == [None, None]
    assert last == (Approve("1", True, hunks=taken) if taken else Approve("1", False, stops=True))


def test_the_changes_of_a_tried_command_are_shown_file_by_file() -> None:
    changes = (f"--- a/src/a.py\n+++ b/src/a.py\n{HUNK}", "deleted folder build\n")
    asked = panel("\n".join(changes), hunks=changes)
    text = preview(asked)
    assert "src/a.py" in text
    assert "+ new" in text
    assert "deleted folder build" in text
    asked.hunk = 0
    assert plain(asked.hunk_preview(80)).startswith("Change 1 of 2: src/a.py\n")
    asked.hunk = 1
    assert plain(asked.hunk_preview(80)) == "Change 2 of 2: deleted folder build\n"


def test_trying_first_is_a_choice_where_it_is_offered() -> None:
    request = QuestionEvent("1", ToolUse("1", "bash", {}), "Run", "why", "make", can_try=True)
    assert ApprovalPanel(request).answer("try") == Approve("1", True, "try")
    assert "t try first" in " ".join(rows(ApprovalPanel(request)))
    assert "try" not in " ".join(rows(panel()))


def test_what_git_says_of_a_repository_is_shown_before_the_diffs_of_its_files() -> None:
    said = f"main: 1 → 2\n  + 2 second\n--- a/src/a.py\n+++ b/src/a.py\n{HUNK}--- a/b.py\n+++ b/b.py\n{HUNK}"
    lines = preview(panel(said, hunks=(said,))).split("\n")
    first, second = lines.index("  src/a.py"), lines.index("  b.py")
    assert lines.index("  main: 1 → 2") < first < second
