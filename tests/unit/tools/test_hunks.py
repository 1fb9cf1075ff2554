"""Making some hunks of a change: those and nothing else, in any file."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.errors import ToolError
from agentcli.tools.text.diff import diff_hunks, sides_of_hunks, split_files, unified_diff, with_hunks
from agentcli.tools.tool import ToolContext
from tests.properties import examples
from tests.unit.tools.bench import Bench

FAR = "".join(f"line {n}\n" for n in range(30))


def narrowed(bench: Bench, name: str, hunks: tuple[int, ...], **given: Any) -> str:
    """The diff of a call of which only some hunks are made."""

    async def run() -> str:
        tool = bench.tools.get(name)
        context = ToolContext(bench.workspace, "id")
        assert tool.narrow is not None
        arguments = await tool.narrow(tool.parse(given), context, hunks)
        return str((await tool.run(arguments, context)).structured["diff"])

    return asyncio.run(run())


@given(st.lists(st.sampled_from("abcde"), max_size=3), st.lists(st.sampled_from("abcde"), max_size=3), st.booleans())
def test_a_hunk_has_the_text_of_before_and_after(old: list[str], new: list[str], is_ended: bool) -> None:
    before, after = ("\n".join(lines) + "\n" * bool(is_ended and lines) for lines in (old, new))
    sides = list(sides_of_hunks(unified_diff("a", before, after)))
    assert [(old, new) for _, old, new in sides] == ([] if before == after else [(before, after)])
    assert all(line >= (1 if new else 0) for line, _, new in sides)


def test_a_diff_is_cut_into_its_hunks() -> None:
    diff = unified_diff("a", FAR, FAR.replace("line 3\n", "@@ 3\n").replace("line 25\n", ""))
    hunks = diff_hunks(diff)
    assert len(hunks) == 2
    assert diff.endswith("".join(hunks))
    assert [hunk.count("\n+") + hunk.count("\n-") for hunk in hunks] == [2, 1]


def test_changes_close_to_each_other_are_hunks_of_their_own() -> None:
    diff = unified_diff("a", "a\nb\nc\nd\ne", "A\nb\nC\nd\nnew\ne")
    assert diff_hunks(diff) == (
        "@@ -1,2 +1,2 @@\n-a\n+A\n b\n",
        "@@ -2,3 +2,3 @@\n b\n-c\n+C\n d\n",
        "@@ -4,2 +4,3 @@\n d\n+new\n e\n\\ No newline at end of file\n",
    )
    assert with_hunks("a\nb\nc\nd\ne", "A\nb\nC\nd\nnew\ne", (0, 2)) == "A\nb\nc\nd\nnew\ne"


lines = st.lists(st.sampled_from(["a", "b", "c", "", "@@ x"]), max_size=40)
ends = st.sampled_from(["\n", "\r\n"])


@given(lines, lines, ends, ends, st.booleans(), st.booleans(), st.sets(st.integers(0, 5)))
@examples(300)
def test_all_hunks_make_the_change_and_none_leaves_the_text(
    old: list[str], new: list[str], old_end: str, new_end: str, last: bool, new_last: bool, chosen: set[int]
) -> None:
    before = old_end.join(old) + (old_end if last else "")
    after = new_end.join(new) + (new_end if new_last else "")
    hunks = diff_hunks(unified_diff("x", before, after))
    assert with_hunks(before, after, ()) == before
    every = with_hunks(before, after, range(len(hunks)))
    assert every.replace("\r\n", "\n") == after.replace("\r\n", "\n")
    some = with_hunks(before, after, chosen)
    made = diff_hunks(unified_diff("x", before, some))
    assert (not made) == (not chosen & set(range(len(hunks))))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("final", [True, False])
def test_the_chosen_hunks_of_an_edit_are_made_and_no_other_byte_changes(
    bench: Bench, end: str, bom: bytes, final: bool
) -> None:
    content = FAR.replace("\n", end) if final else FAR.replace("\n", end).removesuffix(end)
    path = bench.put("a", bom + content.encode())
    edits = [{"old_string": f"line {n}{x}", "new_string": f"LINE {n}{x}"} for n, x in ((3, "\n"), (15, "\n"), (29, ""))]
    diff = narrowed(bench, "file_edit", (0, 2), path="a", edits=edits)
    made = content.replace(f"line 3{end}", f"LINE 3{end}").replace("line 29", "LINE 29")
    assert path.read_bytes() == bom + made.encode()
    assert len(diff_hunks(diff)) == 2


def test_the_chosen_hunks_of_replacing_all_are_made(bench: Bench) -> None:
    path = bench.put("a", "x\n" + FAR + "x\n" + FAR + "x")
    narrowed(bench, "file_edit", (1,), path="a", old_string="x", new_string="y", replace_all=True)
    assert path.read_text() == "x\n" + FAR + "y\n" + FAR + "x"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_the_chosen_hunks_of_a_replacement_keep_the_rest_as_it_was(bench: Bench, encoding: str) -> None:
    path = bench.put("a", ("é\r\n" + FAR).encode(encoding))
    bench.call("file_read", path="a")
    content = "é\n" + FAR.replace("line 2\n", "two\n").replace("line 28\n", "")
    narrowed(bench, "file_write", (1,), path="a", content=content)
    assert path.read_bytes() == ("é\r\n" + FAR.replace("line 28\n", "")).encode(encoding)


def test_a_file_that_changed_after_the_choice_is_left_alone(bench: Bench) -> None:
    path = bench.put("a", FAR)
    tool = bench.tools.get("file_edit")
    context = ToolContext(bench.workspace, "id")

    async def run() -> None:
        assert tool.narrow is not None
        given = tool.parse({"path": "a", "old_string": "line 3\n", "new_string": ""})
        await tool.preview(given, context)
        chosen = await tool.narrow(given, context, (0,))
        path.write_text("new\n" + FAR)
        await tool.run(chosen, context)

    with pytest.raises(ToolError, match="changed since it was approved"):
        asyncio.run(run())
    assert path.read_text() == "new\n" + FAR


def test_lines_that_look_like_the_beginning_of_a_file_belong_to_the_change_they_are_in() -> None:
    first = unified_diff("a.sql", "-- drop it\n", "++ harmless.sql\nrm -rf /\n")
    assert "\n--- drop it\n+++ harmless.sql\n" in first
    second = unified_diff("b", "one\n", "two\n")
    assert split_files(f"main: 1 → 2\n{first}{second}") == ["main: 1 → 2\n", first, second]
