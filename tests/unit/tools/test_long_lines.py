"""Edits of files with very long lines, such as minified code: the diff is as long as the change."""

from __future__ import annotations

import pytest

from tests.unit.tools.bench import Bench


@pytest.mark.parametrize("end", ["", "\n", "\nlast\n"])
def test_the_diff_of_a_long_line_shows_what_changed_in_it(bench: Bench, end: str) -> None:
    before = f"{'a' * 2_500_000}alpha;{'b' * 2_500_000}{end}"
    path = bench.put("min.js", before)
    output = bench.call("file_edit", path="min.js", old_string="alpha;", new_string="omega;")
    assert path.read_text() == before.replace("alpha;", "omega;")
    assert output.structured["diff"] == output.content
    removed, added = (line for line in str(output.content).splitlines() if line[:2] in ("-[", "+["))
    assert removed[1:].startswith("[2,499,800 characters]aaa")
    assert "aaaalpha;bbb" in removed
    assert added == "+" + removed[1:].replace("alpha;", "omega;")
    assert len(str(output.content)) < 2_000
    assert (
        bench.preview("file_edit", path="min.js", old_string="omega;", new_string="alpha;").count("aaaomega;bbb") == 1
    )


def test_a_long_line_that_is_new_is_shown_whole_to_who_decides_and_cut_in_the_result(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    edit = {"path": "a", "old_string": "one", "new_string": f"one\n{'x' * 300_000}END"}
    assert "xEND" in bench.preview("file_edit", **edit)
    output = bench.call("file_edit", **edit)
    assert path.read_text() == f"one\n{'x' * 300_000}END\n"
    assert len(str(output.content)) < 3_000
    assert "more characters]" in output.structured["diff"]
