"""A yes to a command of git that connects lets it reach its remote, and nothing that the question did not name."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, Allow, Deny, QuestionEvent, ToolFinished
from tests.app.conftest import MakeModel
from tests.app.running import Place, call
from tests.app.test_hooks import decided, hook, says

pytestmark = pytest.mark.usefixtures("library_home")
OUTSIDE = "runs OUTSIDE the sandbox: it can read, change and send anything you can"


def git(folder: Path, *words: str) -> str:
    identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **identity}, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(work: Path) -> Path:
    git(work, "init", "-q", "-b", "main")
    git(work, "commit", "-q", "--allow-empty", "-m", "first")
    return work


@pytest.fixture
def requests() -> Iterator[list[str]]:
    """The requests that a server on loopback gets, after its port."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_error(404)

        def log_message(self, *parts: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen.append(str(server.server_port))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield seen
    server.shutdown()
    server.server_close()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the calls of the `ssh` on the PATH."""
    calls, folder = tmp_path / "ssh-calls", tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexit 1\n')
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return calls


async def ask(
    model: str, work: Path, answer: Allow | Deny | None = None, **permissions: Any
) -> tuple[list[QuestionEvent], str]:
    """Run the model's calls; return the questions, each of which gets the answer, and the last result."""
    asked: list[QuestionEvent] = []

    def approve(question: QuestionEvent) -> Allow | Deny:
        asked.append(question)
        return answer or Allow()

    options = AgentOptions(settings={"permissions": permissions})
    async with Agent(model, cwd=work, approve=approve, options=options) as agent:
        ends = [event async for event in agent.stream("go") if isinstance(event, ToolFinished)]
    return asked, str(ends[-1].result.content)


def effects(questions: list[QuestionEvent]) -> list[tuple[str, ...]]:
    return [question.effects for question in questions]


def bash(*commands: str) -> list[dict[str, Any]]:
    return [*({"tool_calls": [call("bash", command=command)]} for command in commands), {"text": "done"}]


@pytest.mark.parametrize("mode", ["default", "auto"])
async def test_a_yes_to_a_push_opens_the_host_of_the_remote(
    model: MakeModel, repository: Path, requests: list[str], mode: str
) -> None:
    address = f"127.0.0.1:{requests[0]}"
    git(repository, "remote", "add", "origin", "https://github.com/a/b.git")
    git(repository, "config", f"url.http://{address}/.insteadOf", "https://github.com/")
    asked, _ = await ask(model(*bash("git push -f origin main")), repository, mode=mode)
    (lines,) = effects(asked)
    assert lines == ("forces the push: it can overwrite commits on the remote", f"reaches {address}")
    assert requests[1:] == ["/a/b.git/info/refs?service=git-receive-pack"]


@pytest.mark.parametrize("mode", ["default", "auto"])
async def test_a_command_over_ssh_runs_outside_the_sandbox_and_the_question_says_so(
    model: MakeModel, repository: Path, ssh: Path, mode: str
) -> None:
    git(repository, "remote", "add", "origin", "git@github.com:a/b.git")
    for rule in ("bash", "bash(git *)", "bash(git push origin main)"):
        asked, _ = await ask(model(*bash("git push origin main")), repository, Deny(), mode=mode, allow=[rule])
        assert effects(asked)[0][:2] == (OUTSIDE, "reaches github.com")
        assert asked[0].rules == ()  # it is asked each time
        assert not ssh.exists()
    asked, _ = await ask(model(*bash("git push origin main")), repository, mode=mode)
    assert ssh.read_text() == "git@github.com git-receive-pack 'a/b.git'\n"


@pytest.mark.parametrize("command", ["touch ../made", "git worktree add -q ../made"])
async def test_what_makes_something_outside_the_project_runs_outside_the_sandbox_after_a_yes(
    model: MakeModel, repository: Path, command: str
) -> None:
    made = repository.parent / "made"
    for answer in (Deny(), Allow()):
        assert not made.exists()
        asked, _ = await ask(model(*bash(command)), repository, answer, mode="auto", allow=["bash"])
        assert effects(asked)[0][:2] == (OUTSIDE, f"writes outside the project: {made}")
        assert asked[0].rules == ()
    assert made.exists()


async def test_the_question_says_that_a_new_file_in_tmp_will_be_gone(model: MakeModel, repository: Path) -> None:
    asked, _ = await ask(model(*bash("echo hi > /tmp/agentcli-no-such-file")), repository, mode="auto")
    line = "writes to a /tmp of its own, which is gone when it ends: /tmp/agentcli-no-such-file"
    assert effects(asked)[0] == (line,)


@pytest.mark.parametrize("mode", ["dontAsk", "bypassPermissions", "plan"])
async def test_a_mode_that_asks_nobody_lets_nothing_out_of_the_sandbox(
    model: MakeModel, repository: Path, ssh: Path, mode: str
) -> None:
    git(repository, "remote", "add", "origin", "ssh://git@github.com/a/b.git")
    asked, _ = await ask(model(*bash("git push origin main")), repository, mode=mode, allow=["bash(git push *)"])
    assert (asked, ssh.exists()) == ([], False)


def test_a_hook_lets_nothing_out_of_the_sandbox(place: Place, ssh: Path) -> None:
    git(place.folder, "init", "-q")
    git(place.folder, "remote", "add", "origin", "git@github.com:a/b.git")
    hook(place, "PreToolUse", says(place, "yes", decided("allow")))
    ran = place.run("-p", "go", "-m", place.script(*bash("git push origin main")), env={"PATH": os.environ["PATH"]})
    assert (ran.code, ssh.exists()) == (0, False)


async def test_the_question_says_that_git_may_run_what_the_repository_chose(
    model: MakeModel, repository: Path, ssh: Path
) -> None:
    git(repository, "remote", "add", "origin", "git@github.com:a/b.git")
    (repository / ".git/hooks/pre-push").write_text("#!/bin/sh\nexit 0\n")
    asked, _ = await ask(model(*bash("git push origin main")), repository, Deny())
    chosen = f"git may run what the repository chose: hooks or settings in {repository}/.git"
    assert effects(asked)[0][:2] == (OUTSIDE, chosen)
    assert not ssh.exists()


@pytest.mark.parametrize("pulls", [False, True])
async def test_a_yes_reaches_a_remote_that_is_a_folder_outside_the_sandbox(
    model: MakeModel, repository: Path, tmp_path: Path, pulls: bool
) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "remote.git")
    git(repository, "remote", "add", "origin", str(remote))
    if pulls:
        git(repository, "push", "-q", "origin", "main")
    command = "git fetch origin && git log -1 --format=%s origin/main" if pulls else "git push origin main"
    asked, result = await ask(model(*bash(command)), repository)
    assert effects(asked)[0][0] == OUTSIDE
    assert any(line.endswith(f"outside the project: {remote}") for line in effects(asked)[0])
    assert "first" in result if pulls else git(remote, "log", "-1", "--format=%s") == "first\n"


async def test_a_remote_that_is_not_certain_stays_an_unknown_host(model: MakeModel, repository: Path) -> None:
    git(repository, "remote", "add", "helper", "ext::sh -c x")
    git(repository, "remote", "add", "daemon", "git://example.org/x")
    commands = ("git push", "git push helper", "git push daemon", "GIT_DIR=x git push", "git fetch --multiple a b")
    asked, _ = await ask(model(*bash(*commands)), repository, Deny())
    assert [lines[0].partition(" (")[0] for lines in effects(asked)] == ["connects to unknown hosts"] * 5
    assert effects(asked)[0][0].endswith("(/sandbox host NAME opens one)")


def test_explain_names_the_remote(place: Place) -> None:
    git(place.folder, "init", "-q")
    git(place.folder, "remote", "add", "origin", "https://github.com/a/b.git")
    git(place.folder, "config", "remote.origin.pushurl", "git@example.org:a/b.git")
    explained = [place.run("permissions", "explain", f"git {verb} origin main").out for verb in ("fetch", "push")]
    assert "reaches github.com" in explained[0]
    assert OUTSIDE not in explained[0]
    assert OUTSIDE in explained[1]
    assert "reaches example.org" in explained[1]


@pytest.mark.parametrize("verb", ["fetch", "push"])
@pytest.mark.parametrize("mode", ["default", "acceptEdits", "auto", "dontAsk", "bypassPermissions", "plan"])
async def test_no_rule_and_no_mode_opens_a_folder_that_a_repository_names(
    model: MakeModel, repository: Path, tmp_path: Path, verb: str, mode: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.env").write_text("TOKEN=secret-of-another-project\n")
    nested = repository / "nested"
    git(repository, "init", "-q", "nested")
    git(nested, "commit", "-q", "--allow-empty", "-m", "first")
    git(nested, "config", "remote.origin.url", str(tmp_path / "other"))
    leak = f"cat {tmp_path}/other/.env > {nested}/leak; touch {tmp_path}/other/changed; false"
    for name in ("uploadpack", "receivepack"):
        git(nested, "config", f"remote.origin.{name}", leak)
    script = [{"tool_calls": [call("bash", command=f"git {verb} origin HEAD", cwd="nested")]}, {"text": "done"}]
    asked, _ = await ask(model(*script), repository, Deny(), mode=mode, allow=["bash(git *)"])
    leaked = (nested / "leak").read_text() if (nested / "leak").exists() else ""
    assert (leaked, (tmp_path / "other/changed").exists()) == ("", False)
    lines = [line for lines in effects(asked) for line in lines if line.endswith(f" {tmp_path}/other")]
    assert len(lines) == (mode in ("default", "acceptEdits", "auto"))


@pytest.mark.parametrize("name", ["other", ".ssh"])
def test_a_hook_opens_no_folder_that_a_repository_names(place: Place, name: str) -> None:
    folder = Path(place.environment["HOME"], name)
    folder.mkdir()
    (folder / "id_rsa").write_text("of another project")
    git(place.folder, "init", "-q")
    git(place.folder, "commit", "-q", "--allow-empty", "-m", "first")
    git(place.folder, "config", "remote.origin.url", str(folder))
    run = f"touch ran; touch {folder}/changed; cat {folder}/id_rsa >leak; false"
    git(place.folder, "config", "remote.origin.receivepack", run)
    hook(place, "PreToolUse", says(place, "yes", decided("allow")))
    place.run("-p", "go", "-m", place.script(*bash("git push origin HEAD")))
    assert (place.folder / "ran").exists()
    assert not (folder / "changed").exists()
    if name == ".ssh":
        assert (place.folder / "leak").read_text() == ""


async def test_the_remote_of_a_repository_is_relative_to_its_top_folder(model: MakeModel, repository: Path) -> None:
    (repository / "sub").mkdir()
    git(repository, "remote", "add", "origin", "../other")
    script = [{"tool_calls": [call("bash", command="git push origin main", cwd="sub")]}, {"text": "done"}]
    asked, _ = await ask(model(*script), repository, Deny())
    assert OUTSIDE in effects(asked)[0]
    assert any(line.endswith(f"outside the project: {repository.parent}/other") for line in effects(asked)[0])


async def test_a_rule_denies_a_push_to_a_folder_of_the_project(model: MakeModel, repository: Path) -> None:
    git(repository, "init", "-q", "--bare", "mirror")
    asked, result = await ask(
        model(*bash("git push ./mirror main")), repository, mode="auto", deny=["file_edit(./mirror)"]
    )
    assert (asked, "denies it" in result) == ([], True)
