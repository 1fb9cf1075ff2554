"""Imports of the package: no circle, not even one for the type checker only, and nothing missing in scripts."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    files = [file for file in (ROOT / "agentcli").rglob("*.py") if "tasks" not in file.parts]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imported(tree: ast.Module, names: dict[str, Path]) -> Iterator[str]:
    """The modules that one imports as it is loaded, or under TYPE_CHECKING; what a function imports is no circle."""
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    for node in (*tree.body, *(node for block in blocks for node in block.body)):
        match node:
            case ast.ImportFrom(module=str(module)):
                wholes = [f"{module}.{alias.name}" for alias in node.names]
                yield from (whole if whole in names else module for whole in wholes)
            case ast.Import():
                yield from (alias.name for alias in node.names)


def test_no_module_needs_itself() -> None:
    names = modules()
    graph = {name: set(imported(ast.parse(file.read_text()), names)) - {name} for name, file in names.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


SCRIPTS = sorted(
    file for folder in ("benchmarks", "docs", "examples", "integrations") for file in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_imports_what_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentcli"):
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert [name for name in missing if f"{node.module}.{name}" not in modules()] == []
