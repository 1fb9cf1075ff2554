"""Turns the code blocks in a small model's answer into the edits it describes.

Whole functions, methods or classes replace those of the same name in the attached Python files. Other code becomes the
content of the only other Python file that the prompt names.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any, NamedTuple

from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.llm.provider import Request

_FILE = re.compile(r'<file path="([^"\n]+\.py)">\n(.*?)\n</file>', re.DOTALL)
_NOT_SAID = ("<system-reminder>", "<file path=", "<folder path=")
_NUMBERED = re.compile(r"^ *\d+\t(.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?<![\w@/.-])(?:[\w.-]+/)*[\w-]+\.py(?![\w/])")
_ASKS_FOR_FILE = re.compile(r"\b(?:create|write)\b.*\.py\b", re.IGNORECASE | re.DOTALL)
# Without "rename" and "move", which need more than the definitions in an answer.
_ASKS_FOR_CHANGE = re.compile(
    r"\b(?:add|change|convert|correct|delete|fix|implement|make|mend|refactor|remove|replace|rewrite|update)\b",
    re.IGNORECASE,
)
_TEST_FILE = re.compile(r"(?:^|/)test_[^/]*$|_test\.py$")
_TEST_NAME = re.compile(r"test|.*Tests?(?:Case)?$", re.IGNORECASE)
_HEAD = re.compile(r"( *)(async def|def|class) (\w+)")
_IS_QUESTION = re.compile(r"\s*(?:how|what|where|which|who|why|when|explain|show)\b", re.IGNORECASE)


class _Definition(NamedTuple):
    """A function or class, or a method `within` a class: its lines with its decorators, counted from 0."""

    within: str
    name: str
    is_class: bool
    first: int
    end: int


def block_edits(answer: str, request: Request) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls, as names and inputs of tools, that an answer describes; none unless a change was asked for."""
    prompt, files, written = _asked(request)
    asks_for_file = bool(_ASKS_FOR_FILE.search(prompt)) and not _IS_QUESTION.match(prompt)
    if not asks_for_file and not asks_for_change(prompt):
        return []
    changed = dict(files)
    # Models copy line numbers with the lines, but numbered text may also be data.
    blocks = [block if _parsed(block) else _NUMBERED.sub(r"\1", block) for block in _BLOCK.findall(answer)]
    others = [block for block in blocks if not _apply(block, changed) and _parsed(block)]
    # A file that no longer parses was joined wrongly.
    pairs = [(path, text, changed[path]) for path, text in files.items() if text != changed[path]]
    edits = [_edit(*pair) for pair in pairs if _parsed(pair[2]) is not None or _parsed(pair[1]) is None]
    names = set(_NAME.findall(prompt)) - files.keys() - written
    new = [{"path": name, "content": others[0]} for name in names if asks_for_file and len(names) == len(others) == 1]
    return [*(("file_edit", edit) for edit in edits), *(("file_write", one) for one in new)]


def asks_for_change(prompt: str) -> bool:
    """Return True for a prompt that asks for a change and not for an explanation."""
    return bool(_ASKS_FOR_CHANGE.search(prompt)) and not _IS_QUESTION.match(prompt)


def _asked(request: Request) -> tuple[str, dict[str, str], set[str]]:
    """Return the newest prompt, the attached Python files with later edits applied, and the files written later."""
    uses: list[ToolUse] = []
    done: set[str] = set()
    for message in reversed(request.messages):
        uses += [block for block in reversed(message.content) if isinstance(block, ToolUse)]
        results = [block for block in message.content if isinstance(block, ToolResult)]
        done |= {result.tool_use_id for result in results if not result.is_error}
        texts = [block.text for block in message.content if isinstance(block, Text)]
        typed = [text for text in texts if not text.startswith(_NOT_SAID)]
        if message.role == "user" and typed and not results:
            # The lines of an attached file have numbers; a note may follow them.
            files = {path: "\n".join(_NUMBERED.findall(text)) for one in texts for path, text in _FILE.findall(one)}
            for use in reversed(uses):
                path, old, new = (str(use.input.get(key)) for key in ("path", "old_string", "new_string"))
                if use.name == "file_edit" and use.id in done and path in files:
                    files[path] = files[path].replace(old, new, 1)
            return typed[0], files, {str(use.input.get("path")) for use in uses if use.name == "file_write"}
    return "", {}, set()


def _apply(block: str, files: dict[str, str]) -> bool:
    """Put the definitions of a block in place of those of the same name, and new ones at the end.

    Return False if none of them belongs to a file.
    """
    if (module := _parsed(block)) is None:
        return False
    lines, has_place, touched = block.split("\n"), False, set()
    code_paths = {path for path in files if not _TEST_FILE.search(path)}
    classes = {one.name for text in files.values() for one in _outline(text) if one.is_class}
    for one in _outline(block):
        if (one.within not in classes) if one.within else (one.is_class and one.name in classes):
            continue  # the methods of an existing class are replaced one by one; a new class is added whole
        new = lines[one.first : one.end]
        matches = [(path, at) for path, text in files.items() for at in _outline(text) if at[:2] == one[:2]]
        has_place = has_place or bool(matches)
        if len(matches) == 1:
            path, at = matches[0]
            if code_paths and path not in code_paths:
                continue  # the tests of what is changed stay: small models show them with mistakes
            touched.add(path)
            files[path] = _with_lines(files[path], at.first, at.end, new)
        elif not matches and (path := _place(one, files)):
            has_place = True
            touched.add(path)
            last = max(at.end for at in _outline(files[path]) if at.within == one.within)
            files[path] = _with_lines(files[path], last, last, ["", *([] if one.within else [""]), *new])
    for path in touched if len(touched) == 1 else ():
        files[path] = _with_imports(files[path], module, PurePath(path).stem)
    return has_place


def _with_imports(text: str, block: ast.Module, module_name: str) -> str:
    """Return a file with the further imports of a block, except those from the file itself, `module_name`."""
    if (module := _parsed(text)) is None:
        return text
    imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    known = {name for node in imports for name in _imported(node)}
    names = (name for node in block.body for name in _imported(node))
    new = [name for name in names if name not in known and module_name not in name.split()]
    docstring = module.body[:1] if ast.get_docstring(module) is not None else []
    last = max((node.end_lineno or 0 for node in (*docstring, *imports)), default=0)
    return _with_lines(text, last, last, new) if new else text


def _imported(node: ast.stmt) -> list[str]:
    """Return one statement for each name that a statement imports."""
    match node:
        case ast.Import(names):
            return [ast.unparse(ast.Import([name])) for name in names]
        case ast.ImportFrom(module, names, level):
            return [ast.unparse(ast.ImportFrom(module, [name], level)) for name in names]
        case _:
            return []


def _place(new: _Definition, files: Mapping[str, str]) -> str:
    """Return the file that a new definition belongs to: that of its class, else the only file of tests or of code."""
    paths = [path for path, text in files.items() if any(at.within == new.within for at in _outline(text))]
    if not new.within:
        is_test = bool(_TEST_NAME.match(new.name))
        paths = [path for path in paths if bool(_TEST_FILE.search(path)) == is_test]
    return paths[0] if len(paths) == 1 else ""


def _outline(text: str) -> list[_Definition]:
    """Return the functions, classes and methods of a module. The text need not parse."""
    module = _parsed(text)
    return [*(_by_indentation(text.split("\n")) if module is None else _by_syntax(module.body))]


def _by_syntax(nodes: Sequence[ast.stmt], within: str = "") -> Iterator[_Definition]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield _Definition(within, node.name, isinstance(node, ast.ClassDef), first - 1, node.end_lineno or first)
            if isinstance(node, ast.ClassDef) and not within:
                yield from _by_syntax(node.body, node.name)


def _by_indentation(lines: Sequence[str]) -> Iterator[_Definition]:
    within, inner = "", ""
    for number, line in enumerate(lines):
        if not (head := _HEAD.match(line)) or head[1] not in ("", inner or head[1]) or (head[1] and not within):
            continue
        if head[1]:
            inner = head[1]
        else:
            within, inner = (head[3] if head[2] == "class" else ""), ""
        first = number - sum(1 for _ in takewhile(lambda above: above.lstrip().startswith("@"), lines[:number][::-1]))
        outer = re.compile(rf" {{0,{len(head[1])}}}[@\w#]")
        end = next((n for n in range(number + 1, len(lines)) if outer.match(lines[n])), len(lines))
        while not lines[end - 1].strip():
            end -= 1
        yield _Definition(within if head[1] else "", head[3], head[2] == "class", first, end)


def _with_lines(text: str, first: int, end: int, new: Sequence[str]) -> str:
    lines = text.split("\n")
    return "\n".join([*lines[:first], *new, *lines[end:]])


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _edit(path: str, before: str, after: str) -> dict[str, Any]:
    """Return the edit of the lines that differ, with as many lines around them as make the text unique."""
    old, new = before.split("\n"), after.split("\n")
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    while True:
        piece, instead = old[start : len(old) - end], new[start : len(new) - end]
        if "".join(piece).strip() and instead and f"{before}\n".count("\n".join(piece)) == 1:
            return {"path": path, "old_string": "\n".join(piece), "new_string": "\n".join(instead)}
        start, end = max(0, start - 1), max(0, end - 1)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
