"""The client under test of the official MCP conformance suite: our own, asked to do what each scenario is about.

Run by the suite as a program; the server's address is its last argument.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2

from agentcli.errors import ToolError
from agentcli.extensions.mcp.connection import ServerConnection, connect
from agentcli.extensions.mcp.oauth import StoredLogins, login_auth
from agentcli.extensions.mcp.tools import HttpSpec, RemoteTool, ServerSpec
from agentcli.settings.keys import StoredKeys

SAMPLES = {"string": "text", "number": 5, "integer": 3, "boolean": True, "array": [], "object": {}}


class Unheeding:
    def lost(self, why: str) -> None: ...

    def offer_changed(self) -> None: ...


async def accept_defaults(question: str, options: Sequence[str]) -> str | None:
    """As a person who is content with what is proposed."""
    proposed = [option for option in options if option.startswith("Keep the default")]
    return next(iter([*proposed, *options]), "text")


async def browse(address: str) -> None:
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        await browser.get(address)


def sample_of(tool: RemoteTool) -> dict[str, Any]:
    properties = tool.schema.get("properties", {})
    return {name: SAMPLES.get(about.get("type", "string"), "text") for name, about in properties.items()}


async def main(url: str) -> None:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    browsing: set[asyncio.Task[None]] = set()

    def show(address: str) -> None:
        browsing.add(asyncio.create_task(browse(address)))

    with tempfile.TemporaryDirectory() as folder:
        logins = StoredLogins(StoredKeys(Path(folder, "keys")))
        async with AsyncExitStack() as stack:
            address = HttpSpec(url=url, oauth=oauth_of(given))
            spec = ServerSpec(name="conformance", transport=address)
            auth = None
            if scenario == "auth/basic-cimd":
                address.oauth["clientMetadataUrl"] = "https://conformance-test.local/client-metadata.json"
            if scenario.startswith("auth/"):
                auth = await stack.enter_async_context(login_auth(logins, address, show))
            client = await connect(spec, Unheeding(), Path(folder), address, auth=auth)
            stack.push_async_callback(client.close)
            await use(client, given)


def oauth_of(given: dict[str, Any]) -> dict[str, Any]:
    return (
        {"clientId": given["client_id"], "clientSecret": given.get("client_secret", "")} if "client_id" in given else {}
    )


async def use(client: ServerConnection, given: dict[str, Any]) -> None:
    """Make the calls that the scenario names, or one of each tool; one that wants a schema is given another's."""
    tools = (await client.offer()).tools
    named = [(call["name"], call.get("arguments", {})) for call in given.get("toolCalls", ())]
    for name, input in named or [(tool.name, sample_of(tool)) for tool in tools]:
        if input.get("schema") == {}:
            input["schema"] = next(tool.schema for tool in tools if tool.name != name)
        with suppress(ToolError):  # some scenarios refuse a call, and look at what comes next
            await client.call_tool(name, input, progress=lambda line: None, ask=accept_defaults)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
