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
from agentcli.patterns import lazy_pattern

_FILE = lazy_pattern(r'<file path="([^"\n]+\.py)">\n(.*?)\n</file>', re.DOTALL)
_ADDED = ("<system-reminder>", "<file path=", "<folder path=")  # begin texts of a prompt that nobody typed
_NUMBERED = lazy_pattern(r"^ *\d+\t(.*)$", re.MULTILINE)  # a line of an attached file
_BLOCK = lazy_pattern(r"^```(?:python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PYTHON_PATH = lazy_pattern(r"(?<![\w@/.-])(?:[\w.-]+/)*[\w-]+\.py(?![\w/])")
_ASKS_FOR_FILE = lazy_pattern(r"\b(?:create|write)\b.*\.py\b", re.IGNORECASE | re.DOTALL)
# Without "rename" and "move", which need more than the definitions in an answer.
_ASKS_FOR_CHANGE = lazy_pattern(
    r"\b(?:add|change|convert|correct|delete|fix|implement|make|mend|refactor|remove|replace|rewrite|update)\b",
    re.IGNORECASE,
)
_TEST_FILE = lazy_pattern(r"(?:^|/)test_[^/]*$|_test\.py$")
_TEST_NAME = lazy_pattern(r"test|.*Tests?(?:Case)?$", re.IGNORECASE)
_HEAD = lazy_pattern(r"( *)(async def|def|class) (\w+)")  # its indentation, keyword and name
_IS_QUESTION = lazy_pattern(r"\s*(?:how|what|where|which|who|why|when|explain|show)\b", re.IGNORECASE)


class _Definition(NamedTuple):
    """A function or class, or a method of `class_name`: its lines from `first` to before `end`, with its decorators."""

    class_name: str
    name: str
    is_class: bool
    first: int
    end: int


def block_edits(answer: str, request: Request) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls (names and inputs of tools) that an answer describes; none unless a change was asked for."""
    prompt, files, written_paths = _newest_prompt(request)
    asks_for_file = bool(_ASKS_FOR_FILE.search(prompt)) and not _IS_QUESTION.match(prompt)
    if not asks_for_file and not asks_for_change(prompt):
        return []
    changed = dict(files)
    # Models copy line numbers with the lines, but numbered text may also be data.
    blocks = [block if _parsed(block) else _NUMBERED.sub(r"\1", block) for block in _BLOCK.findall(answer)]
    unused = [block for block in blocks if not _apply_block(block, changed)]  # this also edits the texts in `changed`
    calls = [
        ("file_edit", _edit(path, before, changed[path]))
        for path, before in files.items()
        # A file that parsed before but no longer does was put together wrongly.
        if before != changed[path] and (_parsed(changed[path]) is not None or _parsed(before) is None)
    ]
    new_paths = set(_PYTHON_PATH.findall(prompt)) - files.keys() - written_paths
    contents = list(filter(_parsed, unused))
    if asks_for_file and len(new_paths) == len(contents) == 1:
        calls.append(("file_write", {"path": new_paths.pop(), "content": contents[0]}))
    return calls


def asks_for_change(prompt: str) -> bool:
    """Return True for a prompt that asks for a change and not for an explanation."""
    return bool(_ASKS_FOR_CHANGE.search(prompt)) and not _IS_QUESTION.match(prompt)


def _newest_prompt(request: Request) -> tuple[str, dict[str, str], set[str]]:
    """Return the newest prompt, the attached Python files with later edits applied, and the paths written later."""
    uses: list[ToolUse] = []  # since the prompt, newest first
    done: set[str] = set()  # ids of the calls that succeeded
    for message in reversed(request.messages):
        uses += [block for block in reversed(message.content) if isinstance(block, ToolUse)]
        results = [block for block in message.content if isinstance(block, ToolResult)]
        done |= {result.tool_use_id for result in results if not result.is_error}
        texts = [block.text for block in message.content if isinstance(block, Text)]
        typed = [text for text in texts if not text.startswith(_ADDED)]
        if message.role == "user" and typed and not results:
            # The lines of an attached file have numbers; a note without a number may follow them.
            attached = (found for text in texts for found in _FILE.findall(text))
            files = {path: "\n".join(_NUMBERED.findall(numbered)) for path, numbered in attached}
            for use in reversed(uses):
                path, old, new = (str(use.input.get(key)) for key in ("path", "old_string", "new_string"))
                if use.name == "file_edit" and use.id in done and path in files:
                    files[path] = files[path].replace(old, new, 1)
            return typed[0], files, {str(use.input.get("path")) for use in uses if use.name == "file_write"}
    return "", {}, set()


def _apply_block(block: str, files: dict[str, str]) -> bool:
    """Put a block's definitions into `files` (texts by path): they replace those of the same name, or are appended.

    Returns False if none of them belongs to these files; the block may then be the content of a new file.
    """
    if (module := _parsed(block)) is None:
        return False
    lines, belongs_to_file = block.split("\n"), False
    changed_paths = set()
    code_paths = {path for path in files if not _TEST_FILE.search(path)}
    classes = {old.name for text in files.values() for old in _outline(text) if old.is_class}
    for new in _outline(block):
        # The methods of an existing class are replaced one by one; a new class is added as a whole.
        is_in_new_class = bool(new.class_name) and new.class_name not in classes
        is_existing_class = new.is_class and not new.class_name and new.name in classes
        if is_in_new_class or is_existing_class:
            continue
        new_lines = lines[new.first : new.end]
        key = (new.class_name, new.name)
        matches = [(p, old) for p, text in files.items() for old in _outline(text) if (old.class_name, old.name) == key]
        belongs_to_file |= bool(matches)
        if len(matches) == 1:  # with several, it is unknown which one is meant, so all stay as they are
            path, old = matches[0]
            if code_paths and path not in code_paths:
                continue  # beside code, existing tests stay as they are: small models repeat them with mistakes
            changed_paths.add(path)
            files[path] = _with_lines(files[path], old.first, old.end, new_lines)
        elif not matches and (path := _file_for(new, files)):
            belongs_to_file = True
            changed_paths.add(path)
            last = max(old.end for old in _outline(files[path]) if old.class_name == new.class_name)
            blank = [""] if new.class_name else ["", ""]
            files[path] = _with_lines(files[path], last, last, [*blank, *new_lines])
    if len(changed_paths) == 1:  # of several files, any may need the imports
        path = changed_paths.pop()
        files[path] = _with_imports(files[path], module, PurePath(path).stem)
    return belongs_to_file


def _with_imports(text: str, block: ast.Module, module_name: str) -> str:
    """Return a file with the imports that a block adds, except those from the file itself, `module_name`."""
    if (module := _parsed(text)) is None:
        return text
    imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    known = {statement for node in imports for statement in _single_imports(node)}
    wanted = (statement for node in block.body for statement in _single_imports(node))
    new = [statement for statement in wanted if statement not in known and module_name not in statement.split()]
    docstring = module.body[:1] if ast.get_docstring(module) is not None else []
    last = max((node.end_lineno or 0 for node in (*docstring, *imports)), default=0)
    return _with_lines(text, last, last, new) if new else text


def _single_imports(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import(names):
            return [ast.unparse(ast.Import([name])) for name in names]
        case ast.ImportFrom(module, names, level):
            return [ast.unparse(ast.ImportFrom(module, [name], level)) for name in names]
        case _:
            return []


def _file_for(new: _Definition, files: Mapping[str, str]) -> str:
    """Return the path of the file to append to: that of the class, or the only one of tests or code; empty if none."""
    paths = [path for path, text in files.items() if any(old.class_name == new.class_name for old in _outline(text))]
    if not new.class_name:
        is_test = bool(_TEST_NAME.match(new.name))
        paths = [path for path in paths if bool(_TEST_FILE.search(path)) == is_test]
    return paths[0] if len(paths) == 1 else ""


def _outline(text: str) -> list[_Definition]:
    module = _parsed(text)
    return [*(_definitions_by_indentation(text.split("\n")) if module is None else _definitions_by_syntax(module.body))]


def _definitions_by_syntax(nodes: Sequence[ast.stmt], class_name: str = "") -> Iterator[_Definition]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_class = isinstance(node, ast.ClassDef)
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])  # counted from 1
            yield _Definition(class_name, node.name, is_class, line - 1, node.end_lineno or line)
            if is_class and not class_name:
                yield from _definitions_by_syntax(node.body, node.name)


def _definitions_by_indentation(lines: Sequence[str]) -> Iterator[_Definition]:
    """Yield the definitions in text that does not parse, by the indentation of its lines."""
    class_name = method_indent = ""
    for number, line in enumerate(lines):
        if (head := _HEAD.match(line)) is None:
            continue
        indent, keyword, name = head.groups()
        if not indent:
            class_name, method_indent = name if keyword == "class" else "", ""
        elif not class_name or indent != (method_indent or indent):
            continue  # it is inside a function; the first method of a class sets the indentation of all
        else:
            method_indent = indent
        first = number
        while first > 0 and lines[first - 1].lstrip().startswith("@"):
            first -= 1
        # It ends at the next line that is indented no deeper, except for closing brackets.
        outer = re.compile(rf" {{0,{len(indent)}}}[@\w#]")
        end = next((n for n in range(number + 1, len(lines)) if outer.match(lines[n])), len(lines))
        while not lines[end - 1].strip():
            end -= 1
        yield _Definition(class_name if indent else "", name, keyword == "class", first, end)


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
    start = _count_equal(old, new)  # equal lines before the difference
    end = _count_equal(old[start:][::-1], new[start:][::-1])  # equal lines after it
    while True:
        old_lines, new_lines = old[start : len(old) - end], new[start : len(new) - end]
        old_text = "\n".join(old_lines)
        # The line end at the end of the file is not in `before`. Without new lines, an empty one would stay.
        if old_text.strip() and new_lines and f"{before}\n".count(old_text) == 1:
            return {"path": path, "old_string": old_text, "new_string": "\n".join(new_lines)}
        start, end = max(0, start - 1), max(0, end - 1)  # at last the whole file, which is unique


def _count_equal(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
