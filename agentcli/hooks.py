"""The parts of a session that a program can add or replace: hooks, transforms, locks, sandboxes, MCP connections."""

from agentcli.agent.context.transform import create_context_transform
from agentcli.agent.interfaces import CallHooks, CallRecord, HookAnswer, Locks, NoHooks, TurnHooks
from agentcli.agent.runtime import ContextPolicy, ContextTransform, Guardrails, ModelResolver
from agentcli.agent.state import AgentState
from agentcli.extensions.mcp.tools import MCPClient, RemoteResult, RemoteTool
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.workspace import SearchProvider, SearchResult

__all__ = [
    "AgentState", "CallHooks", "CallRecord", "ContextPolicy", "ContextTransform", "Guardrails", "HookAnswer", "Locks",
    "MCPClient", "ModelResolver", "NoHooks", "RemoteResult", "RemoteTool", "Sandbox", "SearchProvider", "SearchResult",
    "TurnHooks", "create_context_transform",
]  # fmt: skip
