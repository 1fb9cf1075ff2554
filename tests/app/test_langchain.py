"""LangChain: messages survive the way there and back, tools give results under the model's id, models answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import Field

from agentcli import Agent, AgentFailed, AgentOptions
from agentcli.errors import UsageError
from agentcli.langchain import LangChainProvider, from_langchain, langchain_tools, to_langchain, to_tool_message
from agentcli.llm.messages import Base64Source, Document, Image, Message, Text, ToolResult, ToolUse

# Importing LangChain takes a second.
pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("library_home")]

PIXEL = "iVBORw0KGgo="


class Refused(Exception):
    status_code = 401


class WithoutTools(BaseChatModel):
    """LangChain's own `bind_tools` refuses."""

    @property
    def _llm_type(self) -> str:
        return "without tools"

    def _generate(self, *given: Any, **more: Any) -> ChatResult:
        raise NotImplementedError


class Scripted(BaseChatModel):
    """Gives these chunks, a list for each request; keeps what it was asked and bound."""

    replies: list[Any]
    asked: list[list[BaseMessage]] = Field(default_factory=list)
    bound: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, *given: Any, **more: Any) -> ChatResult:
        raise NotImplementedError

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        self.bound.append(tools)
        return self

    async def _astream(
        self, messages: list[BaseMessage], *given: Any, **more: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.asked.append(messages)
        reply = self.replies[len(self.asked) - 1]
        if isinstance(reply, Exception):
            raise reply
        for chunk in reply:
            yield ChatGenerationChunk(message=chunk)


CONVERSATION = (
    Message(
        "user",
        (Text("look"), Image(Base64Source("image/png", PIXEL)), Document(Base64Source("application/pdf", PIXEL))),
    ),
    Message(
        "assistant",
        (Text("I look."), ToolUse("a", "file_read", {"path": "x"}), ToolUse("b", "file_read", {"path": "y"})),
    ),
    Message("user", (ToolResult("a", "text of x"), ToolResult("b", "absent", is_error=True), Text("and now?"))),
    Message("assistant", (Text("Done."),)),
)


def test_messages_survive_the_way_there_and_back() -> None:
    there = to_langchain(CONVERSATION, system="Be brief.")
    assert [message.type for message in there] == ["system", "human", "ai", "tool", "tool", "human", "ai"]
    assert isinstance(there[4], ToolMessage)
    assert (there[4].tool_call_id, there[4].status) == ("b", "error")
    assert from_langchain(there) == ("Be brief.", CONVERSATION)


def test_what_has_no_form_here_is_refused() -> None:
    with pytest.raises(UsageError, match="Could not send"):
        from_langchain([HumanMessage([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}])])
    url = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]
    assert from_langchain([HumanMessage(url)])[1][0].content == (Image(Base64Source("image/png", PIXEL)),)


async def test_our_tools_give_results_under_the_model_s_id(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    async with Agent(cwd=tmp_path, options=AgentOptions(provider=LangChainProvider(Scripted(replies=[])))) as agent:
        tools = {one.name: one for one in await langchain_tools(agent, ["file_read", "file_write"])}
        call = {"type": "tool_call", "id": "model-7", "name": "file_read", "args": {"path": "a.txt"}}
        read = await tools["file_read"].ainvoke(call)
        assert isinstance(read, ToolMessage)
        assert (read.tool_call_id, read.status, "hello" in read.text) == ("model-7", "success", True)
        assert read.artifact["text"] == "hello\n"
        refused = await tools["file_write"].ainvoke(
            {**call, "name": "file_write", "args": {"path": "b.txt", "content": ""}}
        )
        assert (refused.status, "permission_denied" in refused.text) == ("error", True)
        finished = await agent.call_tool("file_read", {"path": "absent"})
        assert to_tool_message(finished).tool_call_id == finished.id
        with pytest.raises(UsageError, match="No tool"):
            await langchain_tools(agent, ["file_raed"])


async def test_a_chat_model_of_langchain_s_answers_and_calls(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    used = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15, "input_token_details": {"cache_read": 10}}
    part = {"name": "file_read", "args": '{"path": ', "id": "c1", "index": 0, "type": "tool_call_chunk"}
    rest = {"name": None, "args": '"a.txt"}', "id": None, "index": 0, "type": "tool_call_chunk"}
    model = Scripted(
        replies=[
            [
                AIMessageChunk("I "),
                AIMessageChunk("read.", tool_call_chunks=[part]),
                AIMessageChunk("", tool_call_chunks=[rest], usage_metadata=used),
            ],
            [AIMessageChunk("It says "), AIMessageChunk("hello.", usage_metadata=used)],
        ]
    )
    async with Agent(cwd=tmp_path, options=AgentOptions(provider=LangChainProvider(model, model="mine"))) as agent:
        done = await agent.run("What does a.txt say?")
    assert done.text == "It says hello."
    assert (done.usage.input_tokens, done.usage.cache_read_input_tokens, done.usage.output_tokens) == (4, 20, 6)
    assert "hello" in model.asked[1][-1].text
    assert any(one["function"]["name"] == "file_read" for one in model.bound[0])


async def test_errors_of_a_chat_model_are_reported_by_kind(tmp_path: Path) -> None:
    async with Agent(
        cwd=tmp_path, options=AgentOptions(provider=LangChainProvider(Scripted(replies=[Refused("who are you?")])))
    ) as agent:
        with pytest.raises(AgentFailed, match="who are you"):
            await agent.run("hello")


async def test_a_chat_model_that_takes_no_tools_is_reported(tmp_path: Path) -> None:
    async with Agent(cwd=tmp_path, options=AgentOptions(provider=LangChainProvider(WithoutTools()))) as agent:
        with pytest.raises(AgentFailed, match="This chat model takes no tools"):
            await agent.run("hi")
