"""Regular expressions mean the same under every Python that is supported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentcli

SOURCES = Path(agentcli.__file__).parent
_ESCAPED_OR_SET = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_POSSESSIVE_OR_ATOMIC = re.compile(r"[*+?}]\+|\(\?>")


def sources() -> Iterator[Path]:
    """The program's own, without the trees of tasks, which hold faults for agents to mend."""
    return (path for path in SOURCES.rglob("*.py") if not path.is_relative_to(SOURCES / "evals/tasks"))


def raw_strings(source: str) -> Iterator[str]:
    """The texts of raw strings, in which this project writes its expressions; what is put in counts as a letter."""
    lines = source.encode().split(b"\n")
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str() | bytes() as text):
                found = text if isinstance(text, str) else text.decode("latin-1")
            case ast.JoinedStr(values=parts):
                found = "".join(part.value if isinstance(part, ast.Constant) else "x" for part in parts)
            case _:
                continue
        if re.match(rb"(?i)(?:r|br|rb|fr|rf)[\"']", lines[node.lineno - 1][node.col_offset :]):
            yield found


def is_misread(expression: str) -> bool:
    """Python 3.11.0 to 3.11.4 read possessive quantifiers and atomic groups wrongly (cpython issue 101955)."""
    if r"\p{" in expression:
        return False  # it is another engine's
    return _POSSESSIVE_OR_ATOMIC.search(_ESCAPED_OR_SET.sub("x", expression)) is not None


@pytest.mark.parametrize("expression", [r"((?:[^/]*/)?+)", r"[^+]*+x", r"(?>a)", r"a{2}+", r"a++"])
def test_what_old_pythons_misread_is_found(expression: str) -> None:
    assert is_misread(expression)


@pytest.mark.parametrize("expression", [r"\*+", r"[*+]x", r"a+|b*", r"[]*+]", r"\?+"])
def test_other_expressions_are_not_taken_for_it(expression: str) -> None:
    assert not is_misread(expression)


@pytest.mark.slow
def test_no_expression_is_misread_by_an_old_python() -> None:
    expressions = [(path, text) for path in sources() for text in raw_strings(path.read_text("utf-8"))]
    assert len(expressions) > 100
    assert [(path.name, text) for path, text in expressions if is_misread(text)] == []
    tables = [path for path in SOURCES.rglob("*.toml") if "(?>" in path.read_text("utf-8")]
    assert tables == []
