"""An editor that speaks the Agent Client Protocol with the program: it asks, answers, and keeps all it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from tests.app.running import Place, Running

Answer = Callable[[dict[str, Any]], Any]
FILES = {"fs": {"readTextFile": True, "writeTextFile": True}}
FORMS = {"elicitation": {"form": {}}}
NOTICES = {"session": {"notices": {}}}


class Refused(Exception):
    """A request of ours, or one to the editor, that fails."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data


class Editor(Running):
    """`answers` are given at once to what the program asks; what has none waits for `asked` and `answer`."""

    def __init__(self, process: Any) -> None:
        self.answers: dict[str, Answer] = {}
        self.said: list[dict[str, Any]] = []  # its requests
        self._ids = count(1)
        self.session = ""
        super().__init__(process)

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            if "id" in message and (answer := self.answers.get(message.get("method", ""))):
                self.answer(message, answer(message["params"]))
            with self._news:
                self._out.append(line.decode())
                self._news.notify_all()

    # What the editor says

    def begin(self, method: str, **params: Any) -> int:
        id = next(self._ids)
        self.said.append({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        self.send(self.said[-1])
        return id

    def end(self, id: int) -> dict[str, Any]:
        """The answer to a request. Raises `Refused`."""
        answer = self.wait_for(lambda line: line.get("id") == id and "method" not in line)
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"], answer["error"].get("data"))
        result: dict[str, Any] = answer["result"]
        return result

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        return self.end(self.begin(method, **params))

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def answer(self, asked: Mapping[str, Any], result: Any) -> None:
        """A `Refused` as the result is an error."""
        if isinstance(result, Refused):
            told: dict[str, Any] = {"error": {"code": result.code, "message": result.message}}
        else:
            told = {"result": result}
        self.send({"jsonrpc": "2.0", "id": asked["id"], **told})

    def introduce(self, **capabilities: Any) -> dict[str, Any]:
        return self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)

    def open(self, cwd: Path, **more: Any) -> dict[str, Any]:
        opened = self.request("session/new", cwd=str(cwd), mcpServers=[], **more)
        self.session = opened["sessionId"]
        return opened

    def prompt(self, text: str, *more: dict[str, Any], session: str = "") -> dict[str, Any]:
        return self.end(self.begin_prompt(text, *more, session=session))

    def begin_prompt(self, text: str, *more: dict[str, Any], session: str = "") -> int:
        content = [{"type": "text", "text": text}, *more] if text else list(more)
        return self.begin("session/prompt", sessionId=session or self.session, prompt=content)

    def cancel(self) -> None:
        self.notify("session/cancel", sessionId=self.session)

    # What it was told

    @property
    def messages(self) -> list[dict[str, Any]]:
        with self._news:
            return [json.loads(line) for line in self._out]

    def updates(self, kind: str = "", *, session: str = "") -> list[dict[str, Any]]:
        told = [message["params"] for message in self.messages if message.get("method") == "session/update"]
        own = [one["update"] for one in told if one["sessionId"] == (session or self.session)]
        return [update for update in own if kind in ("", update["sessionUpdate"])]

    def text(self, kind: str = "agent_message_chunk", *, session: str = "") -> str:
        return "".join(update["content"]["text"] for update in self.updates(kind, session=session))

    def call(self, id: str) -> dict[str, Any]:
        """A call with all its updates laid over one another."""
        merged: dict[str, Any] = {}
        for update in self.updates():
            if update.get("toolCallId") == id:
                merged |= update
        return merged

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [self.call(update["toolCallId"]) for update in self.updates("tool_call") if "_meta" not in update]

    @property
    def notices(self) -> list[str]:
        """The notices, whichever way they come: severity, title, and what there is below it."""
        found = [(one["severity"], one["title"], one.get("description", "")) for one in self.updates("notice")] + [
            (one["_meta"]["agentcli"]["notice"], one["title"], *(part["content"]["text"] for part in one["content"]))
            for one in self.updates("tool_call")
            if "_meta" in one
        ]
        return ["\n".join(filter(None, parts)) for parts in found]

    def wait_for_update(self, kind: str, **fields: Any) -> dict[str, Any]:
        def holds(line: dict[str, Any]) -> bool:
            update = line.get("params", {}).get("update", {})
            return update.get("sessionUpdate") == kind and all(update.get(k) == v for k, v in fields.items())

        found: dict[str, Any] = self.wait_for(holds)["params"]["update"]
        return found

    def asked(self, method: str, number: int = 0) -> dict[str, Any]:
        """A request of the program, with `id` and `params`: the first one, or a later one."""
        seen: list[int] = []

        def is_it(line: dict[str, Any]) -> bool:
            if line.get("method") == method and "id" in line and line["id"] not in seen:
                seen.append(line["id"])
            return line.get("method") == method and "id" in line and seen.index(line["id"]) == number

        return self.wait_for(is_it)

    def choose(self, asked: Mapping[str, Any], option: str) -> None:
        """Choose the option with that id, or that kind."""
        options = asked["params"]["options"]
        chosen = next(one for one in options if option in (one["optionId"], one["kind"]))
        self.answer(asked, {"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}})


def edit(place: Place, *replies: Mapping[str, Any], flags: tuple[str, ...] = (), **capabilities: Any) -> Editor:
    """An editor with an open session in the place, on a script of replies."""
    editor = Editor(place.process("acp", "-m", place.script(*replies), *flags, stdin=True))
    editor.introduce(**capabilities)
    editor.open(place.folder)
    return editor


def choosing(option: str) -> Answer:
    """Answers every permission request with the option of that id or kind."""

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        chosen = next(one for one in params["options"] if option in (one["optionId"], one["kind"]))
        return {"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}}

    return answer
