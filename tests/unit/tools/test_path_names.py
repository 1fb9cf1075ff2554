"""Names that are not UTF-8, as the model sees them and gives them back."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.tools.workspace import display_name, parse_name
from tests.properties import examples
from tests.unit.tools.bench import Bench


@examples(300)
@given(name=st.binary(min_size=1, max_size=12).filter(lambda name: b"\0" not in name))
@example(name=b"\xe9\\x41'\n")
def test_a_name_comes_back_as_it_was(name: bytes) -> None:
    path = os.fsdecode(name)
    display_name(path).encode()
    if display_name(path) != path:
        assert parse_name(display_name(path)) == path
        assert parse_name(f"a/{display_name(path)}/b") == f"a/{path}/b"


def test_a_shell_takes_it_back() -> None:
    name = b"caf\xe9 a'b\\c\nd\x01\xff1"
    ran = subprocess.run(
        ["bash", "-c", f"printf %s {display_name(os.fsdecode(name))}"], capture_output=True, check=True
    )
    assert ran.stdout == name


@pytest.mark.parametrize("name", ["a.py", "$'a'", "$'a\\x41'", "tést", "a$'b"])
def test_any_other_text_is_a_name_itself(name: str) -> None:
    assert display_name(name) == parse_name(name) == name


def test_half_of_a_surrogate_pair_is_not_a_byte() -> None:
    assert parse_name("$'\ud800\\xff'") == "$'\ud800\\xff'"


def test_a_quoted_name_with_a_null_byte_is_not_a_path(bench: Bench) -> None:
    assert "is not a path" in str(bench.fails("file_write", path=r"$'a\x00\xff'", content=""))
    assert not list(bench.ws.iterdir())
