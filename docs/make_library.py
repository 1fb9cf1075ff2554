"""Writes docs/library-reference.md from what `agentcli` exports: python docs/make_library.py."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import msgspec

import agentcli
from agentcli import events, hooks, providers, skills, stores, testing, tokens

HEAD = """# Reference of the library

Every public name, by the module it is imported from. [library.md](library.md) begins with what you want to do. Types are written as in the
source; `None` as a result is left out. This page is written from the docstrings by `python docs/make_library.py`; a test compares it with the
program.
"""
MODULES = (agentcli, events, stores, providers, hooks, tokens, skills, testing)
FIRST = (
    "query", "query_sync", "Agent", "AgentOptions", "AgentFailed", "tool", "Tool", "ToolContext", "ToolOutput", "Provider", "Request",
    "StreamEvent",
)  # fmt: skip


def page() -> str:
    parts = [HEAD]
    described: list[Any] = [agentcli.__version__]
    for module in MODULES:
        parts += [f"## {module.__name__}\n", _text(module) if module is not agentcli else ""]
        names = [name for name in dict.fromkeys((*FIRST, *module.__all__)) if name in module.__all__]
        new = [name for name in names if not any(getattr(module, name) is thing for thing in described)]
        parts += [_described(name, getattr(module, name)) for name in new]
        if also := sorted({*names} - {*new, "__version__"}):
            parts.append(f"It also has `{'`, `'.join(also)}`, described above.\n")
        described += [getattr(module, name) for name in new]
    return "\n".join(filter(None, parts))


def _described(name: str, thing: Any) -> str:
    lines = [f"### {name}\n"]
    if inspect.isclass(thing):
        if fields := _fields(thing):
            lines.append("\n".join(["```python", f"{name}(", *(f"    {field}," for field in fields), ")", "```\n"]))
        elif inspect.isfunction(vars(thing).get("__init__")) and not getattr(thing, "_is_protocol", False):
            lines.append(f"```python\n{_on_lines(_signature(name, thing.__init__))}\n```\n")
        lines += [_text(thing), *_members(thing)]
    elif inspect.isfunction(thing):
        lines += [f"```python\n{_on_lines(_signature(name, thing))}\n```\n", _text(thing)]
    elif type(thing).__module__.startswith("agentcli."):  # an object, such as `encoders`
        lines += [_text(type(thing)), *_members(type(thing))]
    else:
        lines.append(f"```text\n{name} = {_alias(name)}\n```\n")
    return "\n".join(line for line in lines if line) + "\n"


def _members(kind: type) -> list[str]:
    """The properties and methods of a class, a line each."""
    lines = []
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            signature = _signature(name, member.fget).replace("()", "").replace(" ->", ":")
            lines.append(f"- `{signature}`{_told(member.fget)}")
        elif inspect.isfunction(member) and member.__name__ == name:
            lines.append(f"- `{_signature(name, member)}`{_told(member)}")
    return lines


def _fields(thing: type) -> list[str]:
    """The fields of a record with their types and defaults as they stand in the source; none of another class."""
    fields: dict[str, str] = {}
    for kind in reversed(thing.__mro__):
        if is_dataclass(kind) or (issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct):
            definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
            assert isinstance(definition, ast.ClassDef)
            fields |= {ast.unparse(n.target): ast.unparse(n) for n in definition.body if isinstance(n, ast.AnnAssign)}
    fields.pop("agent_id", "")
    return [field for name, field in fields.items() if not name.startswith("_")]


def _signature(name: str, function: Any) -> str:
    """The parameters with their types and defaults as they stand in the source."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    given = definition.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(positional) - len(given.defaults)), *given.defaults]
    shown = [_parameter(*pair) for pair in zip(positional, defaults, strict=True) if pair[0].arg != "self"]
    if given.kwonlyargs:
        shown += ["*", *map(_parameter, given.kwonlyargs, given.kw_defaults)]
    if given.kwarg:
        shown.append(f"**{_parameter(given.kwarg, None)}")
    result = ast.unparse(definition.returns) if definition.returns else "None"
    prefix = "async " if isinstance(definition, ast.AsyncFunctionDef) and "Generator" not in result else ""
    return f"{prefix}{name}({', '.join(shown)}){'' if result == 'None' else f' -> {result}'}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(parameter) + (f" = {ast.unparse(default)}" if default else "")


def _alias(name: str) -> str:
    """The type that an alias stands for, as it stands in the source."""
    for module in [
        module for key, module in sys.modules.items() if key.startswith("agentcli.") and hasattr(module, name)
    ]:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return ast.unparse(node.value)
    raise LookupError(name)


def _on_lines(signature: str) -> str:
    """A long signature, a parameter on each line."""
    if len(signature) <= 100:
        return signature
    head, _, rest = signature.partition("(")
    parameters, _, result = rest.rpartition(")")
    lines = [f"    {parameter}," for parameter in re.split(r", (?=\w+:|\*)", parameters)]
    return "\n".join([f"{head}(", *lines, f"){result}"])


def _text(thing: Any) -> str:
    """A docstring as Markdown: what is indented in it is code already."""
    return (inspect.cleandoc(thing.__doc__) if thing.__doc__ else "").strip() + "\n"


def _told(function: Any) -> str:
    text = inspect.getdoc(function) if function.__doc__ else ""
    return f": {' '.join(text.split())}" if text else ""


if __name__ == "__main__":
    Path(__file__).with_name("library-reference.md").write_text(page(), "utf-8")
