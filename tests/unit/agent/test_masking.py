"""The part of a result that is for programs holds no secret either, in whatever it is made of."""

from __future__ import annotations

from datetime import date
from typing import Any

from msgspec import Struct

from agentcli.agent.calls.report import Mask
from agentcli.safety.secrets.masking import Masker
from agentcli.tools.tool import ToolOutput

SECRET = "ghp_" + "kT9sQ2vXb7LmZr4WcYpH8nDfJ6gA3eU5oR1i"
MASKED = "[masked: github-token]"


class Row(Struct):
    path: str
    text: str


ROWS = [Row("a.py", f"line {n}") for n in range(2_000)]
PLAIN = [{"path": "a.py", "text": f"line {n}"} for n in range(2_000)]


def masked(structured: Any) -> Any:
    return (
        Mask(lambda values: Masker(["known value", *values])).output(ToolOutput("", structured), tool="look").structured
    )


def test_secrets_are_masked_wherever_they_stand_and_all_else_stays() -> None:
    assert masked(None) is None
    assert masked(f"x {SECRET}") == f"x {MASKED}"
    assert masked([1, {"b": (2.5, None, True, ["a known value"])}]) == [
        1,
        {"b": [2.5, None, True, ["a [masked: known-secret]"]]},
    ]
    halves = {"a": SECRET[:20], "b": SECRET[20:], "c": f"\n{SECRET}"}
    assert masked(halves) == halves | {"c": f"\n{MASKED}"}


def test_many_rows_stay_and_the_one_with_a_secret_is_masked() -> None:
    assert masked({"rows": ROWS, "total": 2_000}) == {"rows": PLAIN, "total": 2_000}
    secret = {"path": "b.py", "text": MASKED}
    assert masked({"rows": [*ROWS, Row("b.py", SECRET), *ROWS]}) == {"rows": [*PLAIN, secret, *PLAIN]}


def test_what_is_not_for_json_is_left_and_what_stands_beside_it_is_masked() -> None:
    strange = object()
    assert masked({"strange": strange, "text": SECRET}) == {"strange": strange, "text": MASKED}
    assert masked([strange, Row("a.py", SECRET)]) == [strange, {"path": "a.py", "text": MASKED}]
    assert masked({"day": date(2030, 1, 2), "text": SECRET})["text"] == MASKED


def test_a_private_key_over_several_rows_is_masked_in_all_of_them() -> None:
    body = [
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
        "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDu",
    ]
    lines = ["before", "-----BEGIN PRIVATE KEY-----", *body, "-----END PRIVATE KEY-----", "after"]
    rows = masked([Row("notes.md", line) for line in lines])
    assert {row["path"] for row in rows} == {"notes.md"}
    texts = [row["text"] for row in rows]
    assert (texts[0], texts[-1]) == ("before", "after")
    assert set(texts[1:-1]) == {"[masked: private-key]"}


def test_of_two_private_keys_both_are_masked_and_empty_texts_stay() -> None:
    body = [
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
        "MzEfYyjiWA4R4M2bS1GB4t7NXp98C3SC6dVMvDu",
    ]
    head = ["-----BEGIN RSA PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED", ""]
    lines = [line for part in body for line in (*head, part, "-----END RSA PRIVATE KEY-----")]
    rows = masked([Row("notes.md", line) for line in ("", *lines)])
    assert {row["path"] for row in rows} == {"notes.md"}
    assert [row["text"] for row in rows] == [line and "[masked: private-key]" for line in ("", *lines)]


def test_what_a_script_reads_of_a_file_is_the_file() -> None:
    mask = Mask(Masker, keeps_structured=("file_read",))
    output = ToolOutput(SECRET, {"text": SECRET})
    assert mask.output(output, tool="file_read") == ToolOutput(MASKED, {"text": SECRET})
    assert mask.output(output, tool="bash") == ToolOutput(MASKED, {"text": MASKED})


def test_the_mask_for_values_that_it_knows_already_is_not_made_again() -> None:
    mask, values = Mask(Masker), frozenset(("hunter2hunter2",))
    mask.set_secrets(values)
    assert mask.with_secrets(values) is mask
    assert mask.with_secrets(frozenset()).text("hunter2hunter2") == "hunter2hunter2"
