"""Writes docs/library.md from the docstrings of what `agentcli` exports: python docs/make_library.py."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
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

`AgentOptions(settings=…)` takes a dict that is nested like `config.toml` ([settings.md](settings.md)), or the same as a typed `Settings`; the
structs of its groups are in `agentcli.settings.structs`. A value of a `Settings` counts where it differs from the default:

```python
from agentcli import Agent, AgentOptions, Settings
from agentcli.settings.structs import LimitSettings

agent = Agent(options=AgentOptions(settings=Settings(limits=LimitSettings(max_turns=5))))
```

With the extra `langchain`, `agentcli.langchain` has `to_langchain` and `from_langchain` for messages, `langchain_tools(agent)`, `to_tool_message`,
and `LangChainProvider(chat_model)` for `AgentOptions(provider=…)`.

`Guardrails` look at prompts before the model does, and at answers before `run` returns them. (A stream shows an answer while it is
written.) A prompt that is rejected raises `AgentFailed`, and so does an answer that is rejected again:

```python
class NoAddresses(Guardrails):
    async def check_answer(self, answer: str) -> str:
        return "leave out e-mail addresses." if "@" in answer else ""

agent = Agent(options=AgentOptions(hooks=NoAddresses()))
```

To test a program that uses the library, let `agentcli.testing.ScriptedModel` play the model. It needs no key and no network, and keeps
each request in `requests`, with its `system`, `messages` and `tools`:

```python
from agentcli.testing import ScriptedCall, ScriptedModel, ScriptedReply

model = ScriptedModel([
    ScriptedReply(tool_calls=[ScriptedCall("weather", {"city": "Oslo"})]),  # a reply that calls a tool
    ScriptedReply(error="overloaded"),                                      # or auth, rate_limit, server, timeout, …
    "Take an umbrella.",                                                    # a reply of this text
    lambda messages: f"There are {len(messages)} messages.",                # a reply made of the request's messages
])
done = Agent(model, tools=[weather]).run_sync("How is the weather in Oslo?")
assert model.requests[1].messages[-1].content[0].text == "It rains."
```

A `ScriptedReply` may also have `thinking`, `usage`, `stop_reason` and `delay_ms`. A request after the last reply fails, and so does a
call of a tool that the request does not offer; both errors say what is wrong.

This page is written from the docstrings by `python docs/make_library.py`; a test compares it with the program.
"""

GROUPS = {
    "Agents": ("query", "query_sync", "Agent", "AgentOptions", "AgentFailed"),
    "Tools": ("tool", "Tool", "ToolContext", "ToolOutput", "ToolSpec"),
    "Stores": (
        "ConversationStore", "SessionStore", "MemorySessions", "SqliteSessions", "PostgresSessions", "readable_from",
        "EventStore", "StreamEvent", "StreamState", "MemoryEvents", "SqliteEvents", "RedisEvents",
    ),
    "Seams": ("Provider", "Sandbox", "MCPClient", "RemoteTool", "RemoteResult", "Locks", "TurnHooks", "CallHooks", "Guardrails"),
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
        "to_anthropic_message", "UsageCollector", "TurnRecord", "TurnMetrics",
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
            lines.append("\n".join(["```python", f"{name}(", *(f"    {field}," for field in fields), ")", "```\n"]))
        elif name == "Agent":
            lines.append(f"```python\n{_on_lines(_signature(name, thing.__init__))}\n```\n")
        lines.append(_text(thing))
        for method, function in vars(thing).items():
            if not method.startswith("_") and inspect.isfunction(function) and function.__name__ == method:
                lines.append(f"- `{_signature(method, function)}`{_told(function)}")
    else:
        lines += [f"```python\n{_signature(name, thing)}\n```\n", _text(thing)]
    return "\n".join(line for line in lines if line) + "\n"


def _fields(thing: type) -> list[str]:
    """The fields of a record with their types and defaults as they stand in the source; none of another class."""
    fields: dict[str, str] = {}
    for kind in reversed(thing.__mro__):
        if is_dataclass(kind) or (issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct):
            definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
            assert isinstance(definition, ast.ClassDef)
            fields |= {ast.unparse(n.target): ast.unparse(n) for n in definition.body if isinstance(n, ast.AnnAssign)}
    fields.pop("agent_id", "")
    return list(fields.values())


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
