"""One line about a large text, by rules."""

from __future__ import annotations

import json
import time

from agentcli.tools.observation import data_summary
from tests.rows import each_row

ROWS = [{"id": n, "name": f"x{n}"} for n in range(3_214)]
LOG = "\n".join(
    f"2026-11-23T10:00:{n % 60:02} {'ERROR' if n == 76 else 'warning' if n % 10 == 0 else 'INFO'} hello, you"
    for n in range(300)
)
CASES = {
    "json list": (json.dumps(ROWS), "JSON, list of 3,214 items; keys of the first: id, name"),
    "json list of numbers": ("[1, 2, 3]", "JSON, list of 3 items"),
    "json, laid out": (json.dumps(ROWS[:1], indent=2), "JSON, list of 1 item; keys of the first: id, name"),
    "json, then a note": (json.dumps([[]]) + "\n[exit code 1]", "JSON, list of 1 item"),
    "json, numbered": ("1\t[\n2\t1\n3\t]\n[lines 1-3 of 9]", "JSON, list of 1 item"),
    "json object": (json.dumps({"items": [1] * 300, "next": None}), "JSON, object with 2 keys: items, next"),
    "json object of many": (
        json.dumps({f"k{n}": n for n in range(20)}),
        "JSON, object with 20 keys: " + ", ".join(f"k{n}" for n in range(8)) + " and 12 more",
    ),
    "log": (LOG, "log of 300 lines, 1 with an error, the first in line 77"),
    "html": ("<!doctype html><html><head><title>A  page</title></head>" + "<p>x</p>" * 9, "HTML of 1 line"),
    "xml": ('<?xml version="1.0"?>\n<root>' + "<item/>" * 30, "XML or HTML of 2 lines"),
    "text": ("hello\n" * 299 + "a longer line", "text of 300 lines, the longest has 13 characters"),
    "one line": ("x" * 2_000, "text of 1 line, the longest has 2,000 characters"),
    "nothing": ("", "text of 1 line, the longest has 0 characters"),
    "prose with commas": ("One, two, three.\nFour.\nFive, six.\n", "text of 3 lines, the longest has 16 characters"),
    "brackets that are no JSON": ("[x]\n{y\n[z\n", "text of 3 lines, the longest has 3 characters"),
    "less than": ("< 3\n", "text of 1 line, the longest has 3 characters"),
    "long names": (json.dumps([{"k" * 90: 1}]), f"JSON, list of 1 item; keys of the first: {'k' * 40}…"),
}  # fmt: skip


@each_row("case", CASES)
def test_a_text_is_summed_up(case: str) -> None:
    text, summary = CASES[case]
    assert data_summary(text) == summary


@each_row("piece", ["<title", "[x]\n", "{", "[", '{"a":', "a,b\n", "ERROR\n", "<a ", '"', "1\t", "\n", "<"])
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (4_000_000 // len(piece))
    start = time.process_time()
    assert len(data_summary(text)) < 600
    assert time.process_time() - start < 20
