"""Chooses the chat template a local model is run with.

Every model is run with the template it brings, except the one model this package ships words for. The
template of Qwen2.5-Coder 1.5B Instruct asks for calls in <tool_call> tags, but the model writes them as
fenced blocks. `chat_template.jinja` makes that block the call format; llama.cpp derives its parser from how a
template renders a call, and so gives real tool calls. What else the template does, and why:

- Each tool is one line, `name(argument, optional?)`: half the tokens of its JSON schema, with the same score.
- The fence is marked `tool` and not `json`: once the mark is seen the engine allows nothing but a call, and
  a person who asks for an example in JSON would get a call instead.
- The examples of questions that need no tool keep the model from calling one for every question.
- Each result ends with a reminder to answer; without it the model repeats its call for ever. A result that
  begins with `Error` ends with a reminder to make a different call.

The model is known by what its GGUF header says, not by its file name: the same weights under another name, or
in another quantization, get the same template.
"""

from __future__ import annotations

from pathlib import Path

from agentcli.llm.local_server.gguf import GgufHeader

_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def chat_template_for(header: GgufHeader) -> str | None:
    """The template to run the model with in place of its own, or None to keep its own."""
    if uses_fenced_calls(header):
        return _TEMPLATE.read_text(encoding="utf-8")
    return None


def uses_fenced_calls(header: GgufHeader) -> bool:
    return (
        header.architecture == "qwen2"
        and header.base_name == "Qwen2.5-Coder"
        and header.size_label == "1.5B"
        and "Instruct" in header.fine_tune
    )
