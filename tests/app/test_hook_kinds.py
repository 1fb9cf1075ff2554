"""Hooks of Claude Code's other kinds answer as commands do: addresses, tools of MCP servers, models and subagents."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.app.running import Place, Ran, call
from tests.app.test_hooks import BYPASS, DONE, WRITE, decided, given, results, says
from tests.conformance.confining import folder_on_disk
from tests.processes import needs_bubblewrap

MCP_SERVER = Path(__file__).parents[1] / "mcp_server.py"
KEY = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"


def settings(place: Place, event: str, *hooks: Mapping[str, Any], matcher: str = "") -> str:
    """A settings file in the public form."""
    file = place.folder.parent / "settings.json"
    known = json.loads(file.read_text())["hooks"] if file.exists() else {}
    known.setdefault(event, []).append({"matcher": matcher, "hooks": list(hooks)})
    file.write_text(json.dumps({"hooks": known}))
    return str(file)


def stream(place: Place, *replies: Mapping[str, Any], flags: tuple[str, ...] = BYPASS, code: int = 0) -> Ran:
    file = str(place.folder.parent / "settings.json")
    model = place.script(*replies, DONE)
    ran = place.run("-p", "go", "-m", model, "--output-format", "stream-json", "--settings", file, *flags)
    assert ran.code == code, (ran.out, ran.err)
    return ran


class Endpoint(ThreadingHTTPServer):
    """Answers every POST alike, and remembers what came."""

    def __init__(self, answer: object, status: int, headers: Mapping[str, str]) -> None:
        self.answer, self.status, self.headers = answer, status, headers
        self.asked: list[tuple[Mapping[str, str], dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), Answering)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class Answering(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append(({name.lower(): value for name, value in self.headers.items()}, json.loads(body)))
        answer = json.dumps(self.server.answer).encode()
        self.send_response(self.server.status)
        for name, value in {**self.server.headers, "content-length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *message: object) -> None:
        return


@contextmanager
def endpoint(answer: object, status: int = 200, **headers: str) -> Iterator[Endpoint]:
    with Endpoint(answer, status, headers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_an_address_is_sent_the_event_with_only_the_variables_it_may_have_and_decides(place: Place) -> None:
    place.environment |= {"HOOK_TOKEN": "for-hooks", "OTHER_TOKEN": "for-others"}
    with endpoint(decided("deny", permissionDecisionReason="not by HTTP: <for-hooks>")) as server:
        headers = {"X-Hook": "Bearer $HOOK_TOKEN", "X-Other": "<${OTHER_TOKEN}>"}
        sent = {"type": "http", "url": server.url, "headers": headers, "allowedEnvVars": ["HOOK_TOKEN"]}
        settings(place, "PreToolUse", sent, matcher="Write")
        assert "not by HTTP: <[masked]>" in results(stream(place, WRITE))[0]
    ((told, event),) = server.asked
    assert (told["x-hook"], told["x-other"]) == ("Bearer for-hooks", "<>")
    assert (event["tool_name"], event["hook_event_name"]) == ("Write", "PreToolUse")
    assert not (place.folder / "made").exists()


def test_an_address_that_fails_or_redirects_elsewhere_decides_nothing_and_is_reported(place: Place) -> None:
    with (
        endpoint({}) as elsewhere,
        endpoint({}, 308, location=elsewhere.url) as redirecting,
        endpoint({}, 500) as broken,
    ):
        urls = [redirecting.url, broken.url, "http://127.0.0.1:9/"]
        settings(place, "PreToolUse", *({"type": "http", "url": url, "timeout": 5} for url in urls))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            settings(place, "PreToolUse", {"type": "http", "url": url, "timeout": 0.1})
            ran = stream(place, WRITE)
    assert (place.folder / "made").exists()
    assert not elsewhere.asked
    assert [bool(line["problem"]) for line in ran.of("system", "hook")] == [True] * 4
    assert "timed out after 0.1 s" in str(ran.of("system", "hook"))


def test_on_failure_is_understood(place: Place) -> None:
    settings(place, "PreToolUse", {"type": "http", "url": "http://127.0.0.1:9/", "onFailure": "block"})
    assert "A required hook failed" in results(stream(place, WRITE))[0]


def test_the_addresses_of_an_untrusted_project_are_not_asked(place: Place) -> None:
    with endpoint({}) as server:
        file = place.folder / ".agentcli/hooks.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "http", "url": server.url}]}]}}))
        settings(place, "Stop")
        stream(place)
        assert not server.asked
        stream(place, flags=("--trust",))
        assert len(server.asked) == 1


@pytest.mark.parametrize("continues", [False, True])
def test_a_model_judges_a_call(place: Place, *, continues: bool) -> None:
    judge = place.script({"text": 'Let me see {it}.\n{"ok": false, "reason": "not like this"}'})
    hook = {"type": "prompt", "prompt": "Fine? $ARGUMENTS", "model": judge, "continueOnBlock": continues}
    settings(place, "PreToolUse", hook)
    ran = stream(place, WRITE, code=0 if continues else 130)
    assert "not like this" in results(ran)[0]
    assert (ran.result["result"] == "done") is continues
    assert not (place.folder / "made").exists()


def test_a_no_of_a_model_counts_wherever_it_stands_and_whatever_it_quotes(place: Place) -> None:
    answers = [
        '{"reason": "not like this", "ok": false}',
        '{"ok": false, "reason": "no"}\n\nThe file says `{"ok": true}`, which is not my answer.',
        '{"ok": false, "reason": "the file says {"ok": true}"}',
        '{"ok": false, "reason": "it was cut',
    ]
    for answer in answers:
        settings(place, "PreToolUse", {"type": "prompt", "prompt": answer, "model": place.script({"text": answer})})
    ran = stream(place, WRITE, code=130)
    assert [line["decision"] for line in ran.of("system", "hook")] == ["deny"] * len(answers)
    assert not (place.folder / "made").exists()


def test_a_yes_of_a_model_permits_nothing(place: Place) -> None:
    hook = {"type": "prompt", "prompt": "Fine?", "model": place.script({"text": '{"ok": true}'})}
    settings(place, "PreToolUse", hook)
    ran = stream(place, WRITE, flags=())
    assert not (place.folder / "made").exists()
    assert [line["problem"] for line in ran.of("system", "hook")] == [""]


def test_the_model_of_the_session_judges_where_no_small_one_is_known(place: Place) -> None:
    settings(place, "UserPromptSubmit", {"type": "prompt", "prompt": "Fine?"})
    ran = stream(place, {"text": '{"ok": false, "reason": "not on a Friday"}'}, code=1)
    assert "not on a Friday" in ran.result["result"]


def test_what_is_no_judgement_is_a_failure(place: Place) -> None:
    settings(place, "PreToolUse", {"type": "prompt", "prompt": "Fine?", "model": place.script({"text": "Sure."})})
    (hook,) = stream(place, WRITE).of("system", "hook")
    assert "'Sure.'" in hook["problem"]
    assert (place.folder / "made").exists()


def test_a_subagent_that_reads_verifies_before_the_model_may_end(place: Place) -> None:
    (place.folder / "plan").write_text("the work is half done")
    read = {"tool_calls": [call("file_read", path="plan"), call("file_write", path="made", content="x")]}
    no, yes = ({"text": json.dumps({"ok": ok, "reason": "half done"})} for ok in (False, True))
    verifier = place.script(read, no)
    settings(place, "Stop", {"type": "agent", "prompt": "Is the work done?", "model": verifier})
    settings(place, "PreToolUse", {"type": "agent", "prompt": "Fine?", "model": place.script(yes, yes, yes)})
    ran = stream(place, {"text": "I am done."})
    notes = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "half done" in notes
    assert not (place.folder / "made").exists()
    events = [line["hook_event"] for line in ran.of("system", "hook")]
    assert events[0] == "Stop"
    assert "PreToolUse" not in events  # what a hook's own subagent does makes no further ones


def test_a_tool_of_an_mcp_server_answers(place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(
        f"[mcp_servers.guard]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(MCP_SERVER))}]\n"
    )
    refusal = '{"decision": "block", "reason": "no ${tool_input.path}, ${tool_input.absent}."}'
    input = {"text": refusal, "${tool_input}": 'not only "${tool_input}'}  # an object is text in a key, and in a text
    settings(place, "PreToolUse", {"type": "mcp_tool", "server": "guard", "tool": "say", "input": input})
    assert "no made, ." in results(stream(place, WRITE))[0]


def test_events_that_are_never_fired_are_accepted_with_a_note_and_wrong_pairs_are_reported(place: Place) -> None:
    file = place.home / "config.toml"
    place.home.mkdir(exist_ok=True)
    file.write_text(
        '[[hooks.Setup]]\ncommand = "true"\n[[hooks.FileChanged]]\ncommand = "true"\n'
        '[[hooks.SessionStart]]\ntype = "http"\nurl = "http://127.0.0.1:9/"\n'
        '[[hooks.Notification]]\ntype = "prompt"\nprompt = "Fine?"\n[[hooks.Stop]]\ntype = "wish"\n'
    )
    listed = place.run("hooks", "list")
    assert "never fires Setup" in listed.out
    assert "never fires FileChanged" in listed.out
    for why in ("http is skipped: this event", "prompt is skipped: this event", "type 'wish' is skipped"):
        assert why in listed.err
    ran = place.run("-p", "go", "-m", place.script(DONE))
    assert "never fires" not in ran.out + ran.err
    found = json.loads(place.run("doctor", "--json").out)
    assert [one["status"] for one in found if "never fires Setup" in one["message"]] == ["ok"]


def test_hooks_of_all_kinds_are_listed_and_tried(place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    with endpoint({"decision": "block", "reason": "by HTTP"}) as server:
        (place.home / "config.toml").write_text(
            f'[[hooks.PreToolUse]]\ntype = "http"\nurl = "{server.url}?key=hidden"\n'
            f'[[hooks.Stop]]\ntype = "prompt"\nprompt = "Done?"\n'
        )
        listed = place.run("hooks", "list").out
        assert f"POST {server.url} " in listed
        assert "prompt: Done?" in listed
        assert "by HTTP" in place.run("hooks", "test", "PreToolUse").out
        assert "it needs a session" in place.run("hooks", "test", "Stop").out


def test_arguments_of_a_program_are_read_by_no_shell(place: Place) -> None:
    file = place.folder.parent / "said"
    program = ["-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])", str(file), "${CLAUDE_PROJECT_DIR}/$HOME"]
    settings(place, "Stop", {"type": "command", "command": sys.executable, "args": program})
    stream(place)
    assert file.read_text() == f"{place.folder}/$HOME"


def test_hooks_may_refuse_what_a_slash_command_stands_for(place: Place) -> None:
    settings(place, "UserPromptExpansion", {"command": says(place, "expansion", "not now", 2)}, matcher="review")
    file = str(place.folder.parent / "settings.json")
    ran = place.run("-p", "/review", "-m", place.script(DONE), "--settings", file)
    assert ran.code
    assert "not now" in ran.err
    assert given(place, "expansion")["command_name"] == "review"


def test_a_transcript_in_the_field_s_form_is_complete_at_each_event_and_gone_afterwards(place: Place) -> None:
    place.environment["MY_API_KEY"] = KEY
    copy = f'{sys.executable} -c \'import json, sys; path = json.load(sys.stdin)["transcript_path"]; '
    copy += f'open("{place.folder.parent}/" + sys.argv[1], "w").write(path + "\\n" + open(path).read())\' '
    settings(place, "PreToolUse", {"type": "command", "command": f"{copy} before"})
    settings(place, "Stop", {"type": "command", "command": f"{copy} after"})
    ran = stream(place, {"tool_calls": [call("file_write", path="made", content=f"key {KEY}")]})
    read = {}
    for name in ("before", "after"):
        path, *lines = (place.folder.parent / name).read_text().splitlines()
        assert KEY not in str(lines)
        assert not Path(path).exists()
        assert Path(path).stem == ran.result["session_id"]
        read[name] = list(map(json.loads, lines))
    assert read["after"][: len(read["before"])] == read["before"]
    ids = [line["uuid"] for line in read["after"]]
    assert [line["parentUuid"] for line in read["after"]] == [None, *ids[:-1]]
    messages = [line for line in read["after"] if line["type"] != "system"]
    assert [line["type"] for line in messages] == ["user", "assistant", "user", "assistant"]
    assert {line["cwd"] for line in messages} == {str(place.folder)}
    assert messages[1]["message"]["content"][0]["name"] == "Write"
    assert messages[-1]["message"]["content"] == [{"type": "text", "text": "done"}]
    (use,) = [line["message"]["content"][0] for line in read["before"] if line["type"] == "assistant"]
    assert use["input"]["file_path"] == str(place.folder / "made")


@needs_bubblewrap
def test_commands_cannot_read_transcripts_wherever_temporary_files_are(place: Place) -> None:
    tells = 'import json, sys; open("where", "w").write(json.load(sys.stdin)["transcript_path"])'
    settings(place, "PreToolUse", {"type": "command", "command": f"{sys.executable} -c '{tells}'"})
    (place.folder / "reads").write_text('cat "$(cat where)"')
    with folder_on_disk() as folder:
        place.environment |= {"TMPDIR": str(folder), "AGENTCLI_HOME": str(folder / "agentcli")}
        ran = stream(place, {"tool_calls": [call("bash", command="sh reads")]})
    assert "Permission denied" in results(ran)[0]
