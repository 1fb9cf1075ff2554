"""What was written and does not parse is said with the result."""

from pathlib import Path

import pytest

from agentcli.tools.builtin.files import MAX_CHECKED_BYTES, syntax_note


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.py", b"def f(:\n", "line 1"),
        ("a.py", b"x = (1,\n\ny = 2\n", "line 1: '(' was never closed"),
        ("a.py", b"(" * 1_000, "valid Python"),
        ("a.py", b"x = 1\0\n", "valid Python"),
        ("a.json", b'{"a": }', "not valid JSON"),
        ("a.toml", b"a = \n", "not valid TOML"),
    ],
)
def test_unparsable_input_is_reported(name: str, content: bytes, says: str) -> None:
    assert says in syntax_note(Path(name), content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.py", b"x = '\\d'\n"),
        ("a.py", b""),
        ("a.json", b"\xef\xbb\xbf{}"),
        ("a.py", "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1")),
        ("a.txt", b"def f(:\n"),
        ("a.py", b"(" * (MAX_CHECKED_BYTES + 1)),
    ],
)
def test_parsing_or_undecidable_text_is_not_reported(name: str, content: bytes) -> None:
    assert syntax_note(Path(name), content) == ""
