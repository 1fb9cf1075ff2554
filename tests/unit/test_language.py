"""The package's language and shape: names are the field's terms, docstrings are sentences, nothing is too long."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "agentcli"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# A docstring says what a thing does, not a half sentence about it.
HALF_SENTENCE = re.compile(r"(What|Who|Whom|Whose|Whether|How|Such|That which|Those|Where|When|Which)\b")
VAGUE_FUNCTION = re.compile(
    r"(^|_)(heed|heeded|told|tell|tells|say|says|said|dearest|urge|urges|urging|attend|wish|bring|brings|brought|struck|seen|given|lent|tried"
    r"|kept|taken|left|wanted|gathered|obeyed)(_|$)"
)
PARTICIPLES = """
    Told Seen Said Kept Given Judged Gathered Tried Left Wanted Held Made Lent Learned Asked Listed Looked Counted
    Fetched Found Filled Folded Heard Merged Opened Packed Parsed Permitted Picked Recorded Refused Sent Stored Touched
    Taken
""".split()

# Names that the protocol of events, the stored log and earlier releases fix, and pairs of two protocols that share one.
FIXED_NAMES = {"Steered", "TakenOver", "Pinned", "Labelled", "Paid", "is_wanted", "told"}
SHARED_CLASS_NAMES = {"TextDelta", "ThinkingDelta", "Done", "Compaction"}


@cache
def modules() -> dict[str, ast.Module]:
    return {
        file.relative_to(PACKAGE.parent).as_posix(): ast.parse(file.read_text("utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
        if "evals/tasks" not in file.as_posix()
    }


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for name, tree in modules().items():
        yield from (
            (f"{name}:{getattr(node, 'lineno', 1)}", node) for node in ast.walk(tree) if isinstance(node, kinds)
        )


def test_no_docstring_opens_with_half_a_sentence() -> None:
    assert [
        f"{where}: {doc.splitlines()[0]}"
        for where, node in nodes(ast.Module, ast.ClassDef, *FUNCTIONS)
        if HALF_SENTENCE.match(doc := ast.get_docstring(node) or "")  # type: ignore[arg-type]
    ] == []


def test_functions_have_no_vague_verbs_and_classes_are_nouns() -> None:
    assert [
        f"{where}: {node.name}"
        for where, node in nodes(ast.ClassDef, *FUNCTIONS)
        if isinstance(node, (ast.ClassDef, *FUNCTIONS)) and node.name not in FIXED_NAMES
        if (node.name.strip("_") in PARTICIPLES if isinstance(node, ast.ClassDef) else VAGUE_FUNCTION.search(node.name))
    ] == []


def test_a_class_name_is_used_once() -> None:
    uses = defaultdict(list)
    for where, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        uses[node.name].append(where)
    assert {name: places for name, places in uses.items() if len(places) > 1 and name not in SHARED_CLASS_NAMES} == {}


def test_imports_are_statements() -> None:
    assert [
        where
        for where, node in nodes(ast.Call)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if any(isinstance(part, ast.Constant) and "agentcli" in str(part.value) for part in ast.walk(node))
    ] == []


def test_no_function_is_longer_than_a_screen_and_no_file_than_400_lines() -> None:
    long_functions = [
        where for where, node in nodes(*FUNCTIONS) if getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) >= 60
    ]
    files = (PACKAGE.parent / name for name in modules())
    assert long_functions + [str(file) for file in files if file.read_text("utf-8").count("\n") > 400] == []


# Records whose fields others fix: settings, arguments of tools, entries of the log, forms on a wire, and public records
# that users of the library construct.
WIDE_RECORDS = """
    Settings CompactionSettings BudgetSettings ObservabilitySettings KeySettings GrepSearch CreateSubagent Assistant
    Result Compaction ServerEntry AgentOptions StreamNote SessionInfo ModelInfo ScriptedReply Quirks Tool CommandResult
    ChangeSummary Instance
""".split()


def test_a_record_has_at_most_eight_fields() -> None:
    def is_record(node: ast.ClassDef) -> bool:
        marks = [*node.bases, *(mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list)]
        return any(ast.unparse(mark).split(".")[-1] in ("Struct", "NamedTuple", "dataclass") for mark in marks)

    wide = {
        node.name.strip("_")
        for _, node in nodes(ast.ClassDef)
        if isinstance(node, ast.ClassDef)
        and is_record(node)
        and sum(isinstance(part, ast.AnnAssign) for part in node.body) > 8
    }
    assert sorted(wide - {*WIDE_RECORDS}) == []
