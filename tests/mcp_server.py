"""An MCP server of the handshake era, by hand: it behaves, or misbehaves, as its arguments say.

Run as a program. `--tools FILE` reads the tools from a JSON file at each start and each tools/list.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def tool(name: str, description: str, *required: str, **properties: str) -> dict[str, Any]:
    """A tool whose arguments have these types."""
    schema: dict[str, Any] = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": description, "inputSchema": {**schema, "required": list(required)}}


TOOLS: list[dict[str, Any]] = [
    tool("add", "Adds two numbers and gives their sum, however large they are", "a", "b", a="number", b="number"),
    tool("say", "Says it.", text="string"),
    tool("env", "Tells its environment."),
    tool("slow", "Takes long."),
    tool("die", "Ends the server."),
    tool("flood", "Writes without end."),
    tool("hang", "Never answers."),
    tool("refuse", "Refuses its arguments.", x="string"),
    tool("book", "Asks for a date."),
    tool("visit", "Asks to open an address."),
    tool("touch", "Makes a file.", path="string"),
    tool("grow", "Adds a tool."),
    tool("picture", "Gives a picture."),
    tool("with.dots/and more", "Has a strange name."),
]
FORM = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "title": "Day"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2},
        "class": {"type": "string", "enum": ["first", "second"]},
        "quiet": {"type": "boolean"},
    },
    "required": ["day", "class", "quiet"],
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

numbers = itertools.count(1000)
answers: dict[int, Any] = {}


def send(message: dict[str, Any]) -> None:
    """Write a message; the lone surrogate U+DCE9 becomes the byte of é in Latin-1."""
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode().replace(rb"\udce9", b"\xe9") + b"\n")
    sys.stdout.buffer.flush()


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def ask(params: dict[str, Any]) -> dict[str, Any]:
    """Ask the client for something, and wait for its answer."""
    id = next(numbers)
    send({"id": id, "method": "elicitation/create", "params": params})
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == id:
            found: dict[str, Any] = message.get("result") or {"error": message.get("error")}
            return found
    sys.exit(0)


class Refused(Exception):
    def __init__(self, code: Any, message: str) -> None:
        super().__init__(message)
        self.code = code


# Results that break the protocol, for the tool `odd`.
ODD: dict[str, Any] = {
    "two lines": text("first\n}", isError=True),
    "surrogate": text("half \ud83d"),
    "latin-1": text("caf\udce9"),
    "no base64": {"content": [{"type": "image", "data": "é", "mimeType": "image/png"}]},
    "no result": "a text",
    "structured list": {"structuredContent": [1, 2]},
    "structured alone": {"structuredContent": {"sum": 3}},
    "structured null": {**text("nothing structured"), "structuredContent": None},
}


def call(name: str, given: dict[str, Any], params: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    match name:
        case "add":
            total = given["a"] + given["b"]
            return text(str(total), structuredContent={"sum": total})
        case "say":
            return text(given.get("text", ""))
        case "env":
            return text(json.dumps(dict(os.environ)))
        case "slow":
            token = params.get("_meta", {}).get("progressToken")
            for step in range(1, 4):
                send(
                    {
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": step, "total": 3, "message": f"step {step}"},
                    }
                )
                time.sleep(0.05)
            return text("slowly done")
        case "die":
            print("I have had enough", file=sys.stderr, flush=True)
            os._exit(3)
        case "leave":
            subprocess.Popen(["sleep", "60"])
            os._exit(3)
        case "flood":
            while True:
                sys.stdout.write("x" * 1_000_000)
        case "hang":
            time.sleep(3600)
            return {}
        case "refuse":
            raise Refused(-32602, "x has to be a prime")
        case "book":
            return text(json.dumps(ask({"message": "When do you travel?", "requestedSchema": FORM})))
        case "visit":
            return text(
                json.dumps(
                    ask({"mode": "url", "message": "Pay first.", "url": "https://pay.example/42", "elicitationId": "1"})
                )
            )
        case "touch":
            Path(given["path"]).write_text("made by a server")
            return text("made")
        case "grow":
            tools(options).append({"name": "grown", "description": "Is new.", "inputSchema": {"type": "object"}})
            send({"method": "notifications/tools/list_changed"})
            return text("grown")
        case "picture":
            return {
                "content": [
                    {"type": "text", "text": "a pixel"},
                    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                ],
                "isError": "fails" in given,
            }
        case "odd" if given["kind"] == "error":
            raise Refused("E1", "no such thing")
        case "odd":
            found: dict[str, Any] = ODD[given["kind"]]
            return found
        case "matching":
            return text("matched", structuredContent={"s": "a" * 60 + "!"})
        case _:
            return text(f"called {name}")


def tools(options: argparse.Namespace) -> list[dict[str, Any]]:
    return json.loads(Path(options.tools).read_text()) if options.tools else TOOLS


def answer(method: str, params: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}, "prompts": {}, "resources": {}},
                "serverInfo": {"name": "test", "version": "1"},
                "instructions": Path(options.instructions[1:]).read_text()
                if options.instructions[:1] == "@"
                else options.instructions,
            }
        case "tools/list":
            listed, start = tools(options), int(params.get("cursor") or 0)
            end = start + options.page
            return {"tools": listed[start:end], **({"nextCursor": str(end)} if end < len(listed) else {})}
        case "tools/call":
            return call(params["name"], params.get("arguments", {}), params, options)
        case "prompts/list":
            arguments = [{"name": "city", "required": True}, {"name": "style"}]
            return {"prompts": [{"name": "postcard", "description": "Writes a postcard.", "arguments": arguments}]}
        case "prompts/get":
            said = params["arguments"]
            wanted = f"Write a postcard from {said['city']} in the style {said.get('style', 'plain')}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": wanted}}]}
        case "resources/read":
            if "missing" in params["uri"]:
                raise Refused(-32002, "no such resource")
            return {
                "contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": f"the text of {params['uri']}"}]
            }
        case _:
            raise Refused(-32601, f"unknown method {method}")


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--tools", default="")
    flags.add_argument("--page", type=int, default=5)
    flags.add_argument("--instructions", default="")
    flags.add_argument("--gate", default="", help="a file without which it answers nothing yet")
    flags.add_argument("--mute", action="store_true", help="answers nothing at all")
    flags.add_argument("--chatter", action="store_true", help="prints to stdout what is no message")
    flags.add_argument("--log", default="", help="a file that gets the methods it was asked for")
    options = flags.parse_args()
    while options.gate and not Path(options.gate).exists():
        time.sleep(0.02)
    for line in sys.stdin:
        message = json.loads(line)
        if options.log:
            with Path(options.log).open("a") as log:
                log.write(f"{message.get('method')} {json.dumps(message.get('params'))}\n")
        if options.chatter:
            print("listening on port 1", flush=True)
        if "id" not in message or "method" not in message or options.mute:
            continue
        try:
            send({"id": message["id"], "result": answer(message["method"], message.get("params") or {}, options)})
        except Refused as error:
            send({"id": message["id"], "error": {"code": error.code, "message": str(error)}})


if __name__ == "__main__":
    main()
