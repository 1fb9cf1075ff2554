"""What a small model shows as code is read as the edits it means."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agentcli.llm.block_edits import block_edits
from agentcli.llm.messages import Message, Text, ToolResult, ToolUse
from agentcli.llm.provider import Done, Request, ToolCallDelta, ToolCallEnded, ToolCallStarted, ToolSpec
from tests.conformance.backends import LocalBackend
from tests.conformance.replies import chat_reply

BROKEN = """import sys


def first(items):
    return items[0


@cached
def second(items):
    # the next one
    return items[1]


if __name__ == "__main__":
    print(first(sys.argv))
"""


def request(prompt: str, text: str = BROKEN, *more: Message, path: str = "a.py") -> Request:
    numbered = "\n".join(f"{n}\t{line}" for n, line in enumerate(text.rstrip().split("\n"), 1))
    attached = Text(f'<file path="{path}">\n{numbered}\n</file>')
    return Request("", (Message("user", (Text(prompt), attached)), *more), ())


def block(code: str) -> str:
    return f"You should change it:\n\n```python\n{code}\n```\n\nThen it works."


def test_a_whole_function_takes_the_place_of_the_one_that_is_there() -> None:
    (edit,) = block_edits(block("def first(items):\n    return items[0]"), request("Fix a.py"))
    assert edit == {
        "path": "a.py",
        "old_string": "def first(items):\n    return items[0",
        "new_string": "def first(items):\n    return items[0]",
    }


def test_decorators_belong_to_a_function() -> None:
    (edit,) = block_edits(block("@cached\ndef second(items):\n    return items[2]"), request("Change a.py"))
    assert edit["old_string"].startswith("@cached\ndef second")
    assert edit["old_string"].endswith("return items[1]")


def test_of_a_whole_file_the_functions_that_differ_are_changed() -> None:
    whole = BROKEN.replace("items[0", "items[0]")
    (edit,) = block_edits(block(whole), request("Fix a.py"))
    assert edit["new_string"] == "def first(items):\n    return items[0]"


def test_a_new_function_comes_after_the_last() -> None:
    (edit,) = block_edits(block("def third(items):\n    return items[2]"), request("Add third() to a.py"))
    assert edit["new_string"] == f"{edit['old_string']}\n\n\ndef third(items):\n    return items[2]"


def test_several_new_functions_and_a_changed_last_one_go_together() -> None:
    code = "@cached\ndef second(items):\n    return items[2]\n\n\ndef third():\n    pass\n\n\ndef fourth():\n    pass"
    (edit,) = block_edits(block(code), request("Add functions to a.py"))
    assert edit["old_string"].endswith("return items[1]")
    assert edit["new_string"] == code


def test_what_was_edited_since_is_not_edited_again() -> None:
    shown = block("def first(items):\n    return items[0]")
    (edit,) = block_edits(shown, request("Fix a.py"))
    more = (Message("assistant", (ToolUse("1", "file_edit", edit),)), Message("user", (ToolResult("1", "done"),)))
    assert block_edits(shown, request("Fix a.py", BROKEN, *more)) == []


def test_a_later_question_is_none_of_it() -> None:
    more = (Message("assistant", (Text("Done."),)), Message("user", (Text("What does first() do?"),)))
    assert block_edits(block("def first(items):\n    return items[0]"), request("Fix a.py", BROKEN, *more)) == []


def test_it_is_found_after_a_reminder() -> None:
    note = Message("user", (Text("<system-reminder>No file was changed yet.</system-reminder>"),))
    more = (Message("assistant", (Text("You should."),)), note)
    assert block_edits(block("def first(items):\n    return items[0]"), request("Fix a.py", BROKEN, *more))


def test_it_is_found_after_results_too() -> None:
    more = (Message("assistant", (ToolUse("1", "bash", {}),)), Message("user", (ToolResult("1", "failed"),)))
    assert block_edits(block("def first(items):\n    return items[0]"), request("Fix a.py", BROKEN, *more))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("What does a.py do?", block("def first(items):\n    return items[0]")),
        ("How would I fix a.py?", block("def first(items):\n    return items[0]")),
        ("Fix a.py", "It is right."),
        ("Fix a.py", block("def first(items:\n    return")),
        ("Fix a.py", block("print(1)")),
        ("Fix a.py", block("class First:\n    pass")),
        ("Fix a.py", "```sh\ndef first\n```"),
        ("Fix a.py", block("@cached\ndef second(items):\n    # the next one\n    return items[1]")),
    ],
)
def test_what_means_no_edit_is_none(prompt: str, answer: str) -> None:
    assert block_edits(answer, request(prompt)) == []


def test_a_function_that_two_files_have_is_nobodys() -> None:
    two = Request(
        "",
        (Message("user", (*request("Fix it").messages[0].content, *request("", path="b.py").messages[0].content[1:])),),
        (),
    )
    assert block_edits(block("def first(items):\n    return items[0]"), two) == []


def test_other_files_are_left_alone() -> None:
    assert block_edits(block("def first(items):\n    return items[0]"), request("Fix a.txt", path="a.txt")) == []


async def test_the_embedded_model_s_code_becomes_a_call_of_file_edit() -> None:
    """It comes as a call does, so that permissions, the diff and undo hold for it."""
    backend = LocalBackend()
    tool = ToolSpec("file_edit", "Edits.", {"type": "object", "properties": {"path": {"type": "string"}}})
    asked = replace(request("Fix a.py"), tools=(tool,), max_tokens=100)
    said = block("def first(items):\n    return items[0]")
    with backend.serving([chat_reply(said), chat_reply(said)], None) as server:
        provider = backend.provider(server.url)
        events = [event async for event in provider.stream(asked)]
        without = [event async for event in provider.stream(replace(asked, tools=()))]
        await provider.aclose()
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.stop_reason, [use.name for use in done.message.tool_uses]) == ("tool_use", ["file_edit"])
    assert done.message.text == said
    assert [type(event) for event in events[-4:-1]] == [ToolCallStarted, ToolCallDelta, ToolCallEnded]
    assert isinstance(without[-1], Done)
    assert without[-1].message.tool_uses == ()
