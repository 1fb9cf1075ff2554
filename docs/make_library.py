"""Writes docs/library.md from the docstrings of what `agentcli` exports: python docs/make_library.py."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec

import agentcli

HEAD = """# The library

```python
from agentcli import Agent, tool
```

Everything below comes from the package `agentcli`, is typed, and passes `mypy --strict`. It works within a running event loop (a
notebook, a web server), and any number of agents live side by side. `examples/` holds whole programs.

`Agent(settings=…)` takes a dict that is nested like `config.toml` ([settings.md](settings.md)), or the same as a typed `Settings`; the
structs of its groups are in `agentcli.settings.structs`. A value of a `Settings` counts where it differs from the default:

```python
from agentcli import Agent, Settings
from agentcli.settings.structs import LimitSettings

agent = Agent(settings=Settings(limits=LimitSettings(max_turns=5)))
```

With the extra `langchain`, `agentcli.langchain` has `to_langchain` and `from_langchain` for messages, `langchain_tools(agent)`, `to_tool_message`,
and `LangChainProvider(chat_model)` for `Agent(provider=…)`.

This page is written from the docstrings by `python docs/make_library.py`; a test compares it with the program.
"""

GROUPS = {
    "Agents": ("Agent", "AgentFailed"),
    "Tools": ("tool", "Tool", "ToolContext", "ToolOutput", "ToolSpec"),
    "Stores": (
        "ConversationStore", "SessionStore", "MemorySessions", "SqliteSessions", "PostgresSessions", "readable_from",
        "EventStore", "StreamEvent", "StreamState", "MemoryEvents", "SqliteEvents", "RedisEvents",
    ),
    "Seams": ("Provider", "Sandbox", "MCPClient", "RemoteTool", "RemoteResult", "Locks", "TurnHooks", "CallHooks"),
    "Events": (
        "TextDelta", "ThinkingDelta", "ToolStarted", "OutputDelta", "ToolFinished", "ClientToolRequested",
        "UsageReported", "Compaction", "ProviderSwitched", "Retry", "Notice", "SubagentStarted", "SubagentEnded", "HookRan",
        "EntryStored", "Done", "TurnFailed",
    ),
    "Questions, which are events": (
        "QuestionEvent", "CommandApproval", "EditApproval", "CallApproval", "ChangesApproval", "Question", "PlanApproval",
        "LimitQuestion",
    ),
    "Operations, for `(await agent.session()).submit`": (
        "Prompt", "Steer", "Interrupt", "Approve", "ClientResult", "SetModel", "SetMode", "SetEffort",
    ),
    "Counting and forms": (
        "count_tokens", "count_message_tokens", "count_conversation_tokens", "get_model_info", "to_chat_completion",
        "to_anthropic_message", "UsageCollector",
    ),
    "Skills": ("Skill", "read_skill", "SkillRegistry", "Activation"),
    "Errors": ("AgentcliError", "UserError", "UsageError", "ConfigError", "StorageError", "ToolError"),
}  # fmt: skip


def page() -> str:
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [_described(name, getattr(agentcli, name)) for name in names]
    return "\n".join(parts)


def _described(name: str, thing: Any) -> str:
    lines = [f"### {name}\n"]
    if inspect.isclass(thing):
        if fields := _fields(thing):
            lines.append(f"```python\n{name}({', '.join(fields)})\n```\n")
        elif name == "Agent":
            lines.append(f"```python\n{_on_lines(_signature(name, thing.__init__))}\n```\n")
        lines.append(_text(thing))
        for method, function in vars(thing).items():
            if not method.startswith("_") and inspect.isfunction(function):
                lines.append(f"- `{_signature(method, function)}`{_told(function)}")
    else:
        lines += [f"```python\n{_signature(name, thing)}\n```\n", _text(thing)]
    return "\n".join(line for line in lines if line) + "\n"


def _fields(thing: type) -> list[str]:
    if not (isinstance(thing, type) and issubclass(thing, msgspec.Struct)):
        return []
    return [field.name for field in msgspec.structs.fields(thing) if field.name != "agent_id"]


def _signature(name: str, function: Any) -> str:
    """The parameters with their types as they stand in the source."""
    types = _types(function)
    shown = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            shown.append("*")
        text = f"{'**' if parameter.kind is parameter.VAR_KEYWORD else ''}{parameter.name}"
        if parameter.name in types:
            text += f": {types[parameter.name]}"
        if parameter.default is not parameter.empty:
            default = parameter.default
            text += f" = {default.__name__ if inspect.isfunction(default) else repr(default)}"
        shown.append(text)
    arrow = f" -> {types['return']}" if types.get("return", "None") != "None" else ""
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{prefix}{name}({', '.join(shown)}){arrow}"


def _types(function: Any) -> dict[str, str]:
    """The types of the parameters, and of the result as "return", as they stand in the source."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}  # a lambda, the default of a field
    types = {node.arg: node.annotation for node in ast.walk(definition.args) if isinstance(node, ast.arg)}
    return {name: ast.unparse(node) for name, node in (types | {"return": definition.returns}).items() if node}


def _on_lines(signature: str) -> str:
    """A long signature, a parameter on each line."""
    head, _, rest = signature.partition("(")
    parameters = re.split(r", (?=\w+:|\*)", rest.removesuffix(")"))
    return "\n".join([f"{head}(", *(f"    {parameter}," for parameter in parameters), ")"])


def _text(thing: Any) -> str:
    """A docstring as Markdown: what is indented in it is code already."""
    return (inspect.cleandoc(thing.__doc__) if thing.__doc__ else "").strip() + "\n"


def _told(function: Any) -> str:
    text = inspect.getdoc(function) if function.__doc__ else ""
    return f": {' '.join(text.split())}" if text else ""


if __name__ == "__main__":
    Path(__file__).with_name("library.md").write_text(page(), "utf-8")
