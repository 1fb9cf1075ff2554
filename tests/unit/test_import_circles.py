"""No circle of imports in the package, not even one that exists for the type checker only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

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
