"""The least an agent in Python can cost: one connection, one tool, the standard library; the floor of `peers.py`."""

import http.client
import json
import os
import subprocess
import sys
from urllib.parse import urlsplit

TOOL = {"name": "bash", "description": "Run a command.", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}  # fmt: skip


def stream_reply(server: http.client.HTTPConnection, messages: list[dict]) -> tuple[str, dict | None]:
    """Print the text of a reply as it comes; return it whole, with its call if it has one."""
    body = {"model": "m", "max_tokens": 4096, "stream": True, "tools": [TOOL], "messages": messages}
    server.request("POST", "/v1/messages", json.dumps(body), {"content-type": "application/json"})
    text, call, arguments = [], None, ""
    for line in server.getresponse():
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            call = event["content_block"]
        elif event["type"] == "content_block_delta":
            arguments += event["delta"].get("partial_json", "")
            if said := event["delta"].get("text"):
                text.append(said)
                print(said, end="", flush=True)
    return "".join(text), call and {**call, "input": json.loads(arguments)}


server = http.client.HTTPConnection(urlsplit(os.environ["ANTHROPIC_BASE_URL"]).netloc)
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    text, call = stream_reply(server, messages)
    if call is None:
        break
    command = ["bash", "-c", call["input"]["command"]]
    output = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
    messages += [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": output}]},
    ]
