"""`agentcli doctor`: a healthy installation has no findings, and each planted problem is found, with its mend."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentcli.llm.local_weights import PINNED
from tests.app.running import Place
from tests.conformance.servers import SILENCE, chat_server, json_reply, ollama_server, refused_address

pytestmark = pytest.mark.slow  # each test starts the program

ROOT = Path(__file__).parents[2]
KEY = "wk-0123456789"


class House(Place):
    """A healthy installation: a server that answers, its key, a terminal, the programs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder)
        self.stack = stack
        self.server = stack.enter_context(chat_server())
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in ("bash", "git", "sh", "cat"):
            (self.programs / name).symlink_to(str(shutil.which(name)))
        self.environment |= {"PATH": str(self.programs), "TERM": "xterm-256color", "WORK_KEY": KEY}
        self.home.mkdir(mode=0o700)
        self.state = self.home / "state"
        self.state.mkdir(mode=0o700)
        self.config = self.home / "config.toml"
        self.set(f'[provider]\nmodel = "work/test-model"\n[providers.work]\nbase_url = "{self.server.url}"')
        self.set('api_key_env = "WORK_KEY"')
        self.python = sys.executable
        self.before = ""  # shell commands that go before the program, as root of a namespace of its own

    def set(self, text: str) -> None:
        with self.config.open("a") as file:
            file.write(f"{text}\n")

    def write(self, path: str, text: str | bytes, mode: int = 0o600) -> Path:
        file = self.folder.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(mode)
        return file

    def doctor(self) -> list[dict[str, Any]]:
        command = [self.python, "-m", "agentcli", "doctor", "--json"]
        if self.before:
            script = f'kept=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin; {self.before}; PATH=$kept; exec "$@"'
            command = ["/usr/bin/unshare", "-rm", "/bin/sh", "-ec", script, "sh", *command]
        if self.before or self.python != sys.executable:
            done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, check=False)
            code, out, err = done.returncode, done.stdout.decode(), done.stderr.decode()
        else:
            ran = self.run("doctor", "--json")
            code, out, err = ran.code, ran.out, ran.err
        assert out, err
        found: list[dict[str, Any]] = json.loads(out)
        assert all(set(one) == {"check", "status", "message", "mend"} for one in found)
        assert code == any(one["status"] == "problem" for one in found)
        return found


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(tmp_path, stack)


def wrong(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["status"] != "ok"]


def test_a_healthy_installation_has_no_findings(house: House) -> None:
    found = wrong(house.doctor())
    assert [one for one in found if one["check"] != "sandbox" or "bubblewrap" not in one["message"]] == []
    assert wrong(house.doctor()) == found  # what the first run made is as it should be
    shown = house.run("doctor")
    assert "✓ model         work/test-model\n" in shown.out
    assert "✓ servers       work/test-model: test-model answers\n" in shown.out
    assert shown.out.endswith("more checks found no problems.\n")


# Each puts one thing wrong.

Plant = Callable[[House], object]


def settings(text: str) -> Plant:
    return lambda house: house.set(text)


def variables(**env: str) -> Plant:
    return lambda house: house.environment.update(env)


def files(*named: tuple[str, str | bytes, int]) -> Plant:
    """Write files, by path, text and mode."""

    def plant(house: House) -> None:
        for name, text, mode in named:
            house.write(name, text, mode)

    return plant


def without(*programs: str) -> Plant:
    return lambda house: [(house.programs / name).unlink() for name in programs]


def as_root(before: str) -> Plant:
    return lambda house: setattr(house, "before", before)


def broken_ripgrep(house: House) -> None:
    house.write("bin/rg", "#!/bin/sh\nexit 1\n", 0o755)
    python = house.folder.parent / "bin" / "python"
    python.symlink_to(sys.executable)
    house.python = str(python)
    house.environment["PYTHONPATH"] = ":".join(filter(None, [str(ROOT), *sys.path]))


def broken_git(house: House) -> None:
    (house.programs / "git").unlink()
    house.write("programs/git", "#!/bin/sh\nexit 127\n", 0o755)


def file_as_state(house: House) -> None:
    shutil.rmtree(house.state)
    house.state.write_text("")


def stored_session(house: House) -> Path:
    assert house.run("-m", house.script({"text": "Hi."}), "-p", "hi").code == 0
    return house.state / "sessions.db"


def damaged_sessions(house: House) -> None:
    with stored_session(house).open("r+b") as database:
        database.seek(4096)
        database.write(b"\xff" * 8192)


def later_sessions(house: House) -> None:
    with sqlite3.connect(stored_session(house)) as database:
        database.execute("PRAGMA user_version = 9999")


def trusted(name: str, text: str) -> Plant:
    def plant(house: House) -> None:
        house.write(f"project/.agentcli/{name}", text)
        assert house.run("config", "trust").code == 0

    return plant


def served_at(address: Callable[[House], str]) -> Plant:
    return lambda house: house.config.write_text(house.config.read_text().replace(house.server.url, address(house)))


def refusing(house: House) -> str:
    refused = json_reply({"error": {"message": "Incorrect API key"}}, 401)
    return str(house.stack.enter_context(chat_server(models=refused)).url)


def ollama(**how: Any) -> Plant:
    def plant(house: House) -> None:
        server = house.stack.enter_context(ollama_server(**how))
        house.environment |= {"OLLAMA_HOST": server.url, "AGENTCLI_MODEL": "ollama/qwen3"}

    return plant


NO_BUBBLEWRAP = (
    "for each in /usr/bin/bwrap /usr/local/bin/bwrap; do ! [ -f $each ] || mount --bind /dev/null $each; done"
)
NO_NAMESPACES = (
    "echo 0 >/proc/sys/user/max_user_namespaces; "
    'set -- /usr/bin/setpriv --bounding-set -all --inh-caps -all --ambient-caps -all "$@"'
)
OTHER = "#!/bin/sh\necho agentcli 0.0.1\n"
WEIGHTS = "home/cache/models"
UNENCRYPTED = {
    "AGENTCLI_MODEL": "openai/gpt-5",
    "OPENAI_API_KEY": KEY,
    "OPENAI_BASE_URL": "http://192.0.2.1:9",
}
ELSEWHERE = {
    "AGENTCLI_MODEL": "anthropic/claude-sonnet-5-5",
    "ANTHROPIC_API_KEY": KEY,
    "ANTHROPIC_BASE_URL": "ftp://127.0.0.1",
}
MISSPELT = {"AGENTCLI_MODEL": "anthropic/claude-sonet-5-5", "ANTHROPIC_API_KEY": KEY}
NOT_PULLED = json_reply({"error": "model 'qwen3' not found"}, 404)

# The check that finds it, a part of what it says, and the plant.
PLANTS: list[tuple[str, str, Plant]] = [
    ("installation", "agentcli (0.0.1)", files(("programs/agentcli", OTHER, 0o755))),
    ("ripgrep", "does not run", broken_ripgrep),
    ("bash", "bash is missing", without("bash")),
    ("git", "git is missing", without("git")),
    ("git", "does not run", broken_git),
    ("sandbox", "bubblewrap: not installed", as_root(NO_BUBBLEWRAP)),
    ("sandbox", "namespaces are forbidden", as_root(NO_NAMESPACES)),
    ("sandbox", "Weak sandbox (landlock)", variables(AGENTCLI_SANDBOX_KIND="landlock")),
    ("local model", "is damaged: 4 bytes", files((f"{WEIGHTS}/{PINNED.file_name}", b"GGUF", 0o600))),
    ("local model", "not a GGUF file", settings('[local]\nmodel = "/etc/passwd"')),
    ("state", "Could not write to", file_as_state),
    ("state", "mode 755", lambda house: house.state.chmod(0o755)),
    ("sessions", "is damaged", damaged_sessions),
    ("sessions", "newer", later_sessions),
    ("keys", "could not be read", files(("home/credentials.json", "{", 0o600))),
    ("keys", "not private to you", files(("home/credentials.json", "{}", 0o644))),
    ("settings", "config.toml", settings("limits = [")),
    ("settings", "unknown setting", settings("[limits]\nmax_turn = 3")),
    ("settings", "limits.max_turns", settings('[limits]\nmax_turns = "three"')),
    ("settings", "http://", settings('[providers.b]\nbase_url = "ftp://example.org"')),
    ("settings", "Unknown tool 'file_red'", settings('[tools]\nonly = ["file_red"]')),
    ("settings", "sandbox.hosts", settings('[sandbox]\nhosts = ["a b"]')),
    ("settings", "encoders", settings('[tokens]\nencoders = "nowhere.toml"')),
    ("settings", "AGENTCLI_LIMITS_MAX_TURN is not a setting", variables(AGENTCLI_LIMITS_MAX_TURN="3")),
    ("settings", "not trusted and not used", files(("project/.agentcli/config.toml", "", 0o600))),
    ("settings", "[provider] cannot be set", trusted("config.toml", '[provider]\nmodel = "a/b"\n')),
    ("settings", "Others can write to", lambda house: house.config.chmod(0o666)),
    ("model", "Unknown provider 'antropic'", variables(AGENTCLI_MODEL="antropic/claude-sonnet-5-5")),
    ("model", "is not in the table", variables(**MISSPELT)),
    ("model", "groq needs an API key", variables(AGENTCLI_MODEL="groq/llama")),
    ("model", "not installed", variables(AGENTCLI_MODEL="local/default")),
    ("model", "No model is set up.", lambda house: house.config.unlink()),
    ("servers", "ANTHROPIC_BASE_URL", variables(**ELSEWHERE)),
    ("servers", "work/test-model: ", served_at(lambda house: refused_address())),
    ("servers", "to 192.0.2.1 unencrypted", variables(**UNENCRYPTED)),
    ("servers", "work has no model 'absent'", variables(AGENTCLI_MODEL="work/absent")),
    ("servers", "Incorrect API key", served_at(refusing)),
    ("servers", "model 'qwen3' not found", ollama(show=NOT_PULLED)),
    ("servers", "ollama/qwen3: ", variables(AGENTCLI_MODEL="ollama/qwen3")),
    ("hooks", "unknown event", settings('[[hooks.PreTool]]\ncommand = "true"')),
    ("hooks", "hooks.json", trusted("hooks.json", "{")),
    ("MCP servers", "neither a command", settings("[mcp_servers.one]\nargs = []")),
    ("terminal", "TERM is dumb", variables(TERM="dumb")),
    ("terminal", "TERM is not set", variables(TERM="")),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("check", "said", "plant"), PLANTS, ids=[f"{check}: {said}" for check, said, _ in PLANTS])
def test_a_planted_problem_is_found_with_its_fix(house: House, check: str, said: str, plant: Plant) -> None:
    before = {json.dumps(one) for one in wrong(house.doctor())}
    plant(house)
    if house.before and subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no namespaces to plant it in")
    found = [one for one in wrong(house.doctor()) if json.dumps(one) not in before]
    (told,) = [one for one in found if one["check"] == check and said in one["message"]][:1] or [None]
    assert told, found
    assert told["mend"], told
    assert KEY not in json.dumps(found)


def test_a_server_that_cannot_be_read_is_a_finding_of_one_check(house: House) -> None:
    house.set("[mcp_servers.nameless]\nargs = []")
    assert [one["check"] for one in wrong(house.doctor()) if "nameless" in one["message"]] == ["MCP servers"]


@pytest.mark.full
def test_only_servers_of_the_models_in_use_are_asked_each_with_its_own_key(house: House) -> None:
    silent = house.stack.enter_context(chat_server(models=SILENCE))
    unused = house.stack.enter_context(chat_server())
    house.set(f'[providers.silent]\nbase_url = "{silent.url}"\napi_key_env = "OTHER_KEY"')
    house.set(f'[providers.unused]\nbase_url = "{unused.url}"')
    house.environment |= {"OTHER_KEY": "ok-9876543210", "AGENTCLI_PROVIDER_FALLBACK_MODEL": "silent/any"}
    found = [one for one in wrong(house.doctor()) if one["check"] == "servers"]
    assert ["did not answer within 3 s" in one["message"] for one in found] == [True]
    for server, key in ((house.server, KEY), (silent, "ok-9876543210")):
        assert [asked.headers["authorization"] for asked in server.others] == [f"Bearer {key}"]
    assert not unused.others


def test_the_slash_command_tells_the_same(house: House) -> None:
    house.environment["TERM"] = "dumb"
    told = house.run("-m", house.script(), "-p", "/doctor").out
    assert "! terminal      TERM is dumb" in told
    assert f"{' ' * 16}→ export TERM=xterm-256color" in told
