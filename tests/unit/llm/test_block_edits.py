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
SOUND = BROKEN.replace("items[0", "items[0]")


def request(prompt: str, text: str = BROKEN, *more: Message, path: str = "a.py") -> Request:
    numbered = "\n".join(f"{n}\t{line}" for n, line in enumerate(text.rstrip().split("\n"), 1))
    attached = Text(f'<file path="{path}">\n{numbered}\n</file>')
    return Request("", (Message("user", (Text(prompt), attached)), *more), ())


def block(code: str) -> str:
    return f"You should change it:\n\n```python\n{code}\n```\n\nThen it works."


def edited(code: str, prompt: str = "Fix a.py", text: str = BROKEN) -> str:
    """The file after the one edit that a block of code stands for, which finds its place."""
    ((name, edit),) = block_edits(block(code), request(prompt, text))
    assert (name, edit["path"], text.count(edit["old_string"])) == ("file_edit", "a.py", 1)
    return text.replace(edit["old_string"], edit["new_string"])


def test_a_whole_function_takes_the_place_of_the_one_that_is_there() -> None:
    assert edited("def first(items):\n    return items[0]") == BROKEN.replace("items[0", "items[0]")


def test_numbers_of_lines_are_none_of_the_code() -> None:
    assert edited("9\tdef first(items):\n10\t    return items[0]") == BROKEN.replace("items[0", "items[0]")


def test_numbers_in_data_stay() -> None:
    code = 'def first(items):\n    return """\n1\ta\n"""'
    assert code in edited(code)


def test_decorators_belong_to_a_function() -> None:
    assert edited("@cached\ndef second(items):\n    return items[2]", text=SOUND) == SOUND.replace(
        "    # the next one\n    return items[1]", "    return items[2]"
    )
    assert edited("def second(items):\n    # the next one\n    return items[1]", text=SOUND) == SOUND.replace(
        "@cached\n", ""
    )


def test_of_a_whole_file_the_functions_that_differ_are_changed() -> None:
    whole = BROKEN.replace("items[0", "items[0]")
    ((_, edit),) = block_edits(block(whole), request("Fix a.py"))
    assert (edit["old_string"], edit["new_string"]) == ("    return items[0", "    return items[0]")


def test_a_new_function_comes_after_the_last() -> None:
    third = "def third(items):\n    return items[2]"
    assert f"    return items[1]\n\n\n{third}\n\n\nif __name__" in edited(third, "Add third() to a.py")


def test_several_new_functions_and_a_changed_last_one_go_together() -> None:
    code = "@cached\ndef second(items):\n    return items[2]\n\n\ndef third():\n    pass\n\n\ndef fourth():\n    pass"
    assert f"{code}\n\n\nif __name__" in edited(code, "Add functions to a.py")


CLASSES = '''"""Shapes."""

from math import pi


class Circle:
    scale = 1

    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return self.radius


class Square:
    def area(self):
        return self.radius
'''


def test_methods_change_one_by_one_and_new_ones_come_after_the_last() -> None:
    code = "class Circle:\n    def area(self):\n        return 1\n\n    def name(self):\n        return 2"
    assert edited(code, text=CLASSES) == CLASSES.replace(
        "        return self.radius\n\n\nclass Square",
        "        return 1\n\n    def name(self):\n        return 2\n\n\nclass Square",
    )


def test_methods_are_found_in_a_file_that_does_not_parse() -> None:
    broken = CLASSES.replace("= radius", "= (radius")
    code = "class Circle:\n    def __init__(self, radius):\n        self.radius = radius"
    assert edited(code, text=broken) == CLASSES


def test_a_function_ends_where_python_says() -> None:
    text = 'def usage():\n    print("""\nUsage: a\n""")\n\n\nprint(1)\n'
    assert edited("def usage():\n    pass", text=text) == "def usage():\n    pass\n\n\nprint(1)\n"


def test_what_a_block_imports_more_is_imported() -> None:
    code = "import re\nfrom math import pi, tau\nfrom a import Circle\n\ndef tall():\n    return re, tau"
    after = edited(code, "Add tall() to a.py", CLASSES)
    assert after.startswith('"""Shapes."""\n\nfrom math import pi\nimport re\nfrom math import tau\n\n\nclass Circle')


def test_tests_go_to_the_file_of_tests() -> None:
    tests = request("", "import unittest\n\n\nclass Old:\n    pass\n", path="test_a.py").messages[0].content[1:]
    both = Request("", (Message("user", (*request("Add tests").messages[0].content, *tests)),), ())
    calls = block_edits(block("class TestFirst:\n    pass") + block("def third():\n    pass"), both)
    assert [edit["path"] for _, edit in calls] == ["a.py", "test_a.py"]


def test_tests_that_are_there_stay_where_their_code_is_attached_too() -> None:
    text = "class OldTest:\n    def test_old(self):\n        pass"
    tests = request("", text, path="test_a.py").messages[0].content[1:]
    both = Request("", (Message("user", (*request("Fix a.py").messages[0].content, *tests)),), ())
    shown = block("import re\n" + text.replace("pass", "return 1"))
    assert block_edits(shown, both) == []
    alone = Request("", (Message("user", (Text("Fix test_a.py"), *tests)),), ())
    assert [edit["path"] for _, edit in block_edits(shown, alone)] == ["test_a.py"]


def test_a_block_for_a_file_that_does_not_exist_is_its_content() -> None:
    alone = Request("", (Message("user", (Text("Write hello.py that greets."),)),), ())
    assert block_edits(block("print('Hello')"), alone) == [
        ("file_write", {"path": "hello.py", "content": "print('Hello')\n"})
    ]
    assert block_edits(block("print('Hello')") + block("print('Bye')"), alone) == []
    nowhere = Request("", (Message("user", (Text("Write a function that greets."),)),), ())
    assert block_edits(block("def greet():\n    pass"), nowhere) == []
    asked = Request("", (Message("user", (Text("How would you write hello.py?"),)),), ())
    assert block_edits(block("print('Hello')"), asked) == []


def test_files_edited_since_are_not_edited_again() -> None:
    shown = block("def first(items):\n    return items[0]")
    ((_, edit),) = block_edits(shown, request("Fix a.py"))
    call = Message("assistant", (ToolUse("1", "file_edit", edit),))
    made = (call, Message("user", (ToolResult("1", "done"),)))
    assert block_edits(shown, request("Fix a.py", BROKEN, *made)) == []
    failed = (call, Message("user", (ToolResult("1", "refused", is_error=True),)))
    assert block_edits(shown, request("Fix a.py", BROKEN, *failed)) == [("file_edit", edit)]
    ((_, again),) = block_edits(block("def first(items):\n    return 1"), request("Fix a.py", BROKEN, *made))
    assert (again["old_string"], again["new_string"]) == ("    return items[0]", "    return 1")


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
        ("Rename first() in a.py to head()", block("def head(items):\n    return items[0]")),
        ("Fix a.py", "It is right."),
        ("Fix a.py", block("def first(items:\n    return")),
        ("Fix a.py", block("print(1)")),
        ("Fix a.py", block("class TestFirst:\n    pass")),
        ("Fix a.py", "```sh\ndef first\n```"),
        ("Fix a.py", block("@cached\ndef second(items):\n    # the next one\n    return items[1]")),
    ],
)
def test_replies_that_mean_no_edit_are_none(prompt: str, answer: str) -> None:
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
    assert (done.stop_reason, [use.name for use in done.message.tool_uses]) == ("end_turn", ["file_edit"])
    assert done.message.text == said
    assert [type(event) for event in events[-4:-1]] == [ToolCallStarted, ToolCallDelta, ToolCallEnded]
    assert isinstance(without[-1], Done)
    assert without[-1].message.tool_uses == ()
