"""`agentcli doctor`: a healthy installation has no findings, and each planted problem is found, with its mend."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import site
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentcli.llm.local_server.weights import PINNED
from tests.app.collector import collector
from tests.app.running import Place
from tests.conformance.servers import OLLAMA_SHOW, SILENCE, chat_server, json_reply, ollama_server, refused_address

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

    def trust(self) -> None:
        assert self.run("config", "trust").code == 0

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
    assert shown.out.endswith("more checks found nothing.\n")


# Plants, by what they plant: the check that finds it, a part of what it says, and the planting.

Plant = Callable[[House], object]
PLANTS: dict[str, tuple[str, str, Plant]] = {}


def plants(what: str, check: str, said: str) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        PLANTS[what] = (check, said, plant)
        return plant

    return note


def setting(what: str, check: str, said: str, text: str) -> None:
    PLANTS[what] = (check, said, lambda house: house.set(text))


def variable(what: str, check: str, said: str, **env: str) -> None:
    PLANTS[what] = (check, said, lambda house: house.environment.update(env))


def file(what: str, check: str, said: str, path: str, text: str | bytes, mode: int = 0o600) -> None:
    PLANTS[what] = (check, said, lambda house: house.write(path, text, mode))


# The machine


@plants("a Python without ssl", "python", "without ssl")
def _(house: House) -> None:
    house.write("modules/ssl.py", "raise ImportError('no OpenSSL here')")
    house.environment["PYTHONPATH"] = str(house.folder.parent / "modules")


@plants("agentcli on the PATH twice", "installation", "2 times")
def _(house: House) -> None:
    for folder in ("one", "two"):
        house.write(f"{folder}/agentcli", f"#!/bin/sh\necho agentcli 0.0.{len(folder)}\n", 0o755)
        house.environment["PATH"] += f":{house.folder.parent / folder}"


@plants("another version on the PATH", "installation", "agentcli (0.0.1)")
def _(house: House) -> None:
    house.write("programs/agentcli", "#!/bin/sh\necho agentcli 0.0.1\n", 0o755)


@plants("no compiled code", "bytecode", "PYTHONDONTWRITEBYTECODE is set")
def _(house: House) -> None:
    house.environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(house.folder / "none")}


@plants("a broken ripgrep", "ripgrep", "does not run")
def _(house: House) -> None:
    (house.folder.parent / "bin").mkdir()
    python = house.folder.parent / "bin" / "python"
    python.symlink_to(sys.executable)
    house.python = str(python)
    house.environment["PYTHONPATH"] = ":".join([str(ROOT), *site.getsitepackages()])
    house.write("bin/rg", "#!/bin/sh\nexit 1\n", 0o755)


@plants("no bash", "bash", "bash is missing")
def _(house: House) -> None:
    (house.programs / "bash").unlink()


@plants("no git", "git", "git is missing")
def _(house: House) -> None:
    (house.programs / "git").unlink()


@plants("a broken git", "git", "does not run")
def _(house: House) -> None:
    (house.programs / "git").unlink()
    house.write("programs/git", "#!/bin/sh\nexit 127\n", 0o755)


@plants("no bubblewrap", "sandbox", "bubblewrap: not installed")
def _(house: House) -> None:
    house.before = (
        "for each in /usr/bin/bwrap /usr/local/bin/bwrap; do ! [ -f $each ] || mount --bind /dev/null $each; done"
    )


@plants("no user namespaces", "sandbox", "namespaces are forbidden")
def _(house: House) -> None:
    without_rights = "/usr/bin/setpriv --bounding-set -all --inh-caps -all --ambient-caps -all"
    house.before = f'echo 0 >/proc/sys/user/max_user_namespaces; set -- {without_rights} "$@"'


variable("Landlock where there is better", "sandbox", "Weak sandbox (landlock)", AGENTCLI_SANDBOX_KIND="landlock")
file("weights cut short", "local model", "is damaged: 4 bytes", f"home/cache/models/{PINNED.file_name}", b"GGUF")
file("a broken download", "local model", "broken off", f"home/cache/models/.{PINNED.name}.parts/pip.log", "")
setting("weights that are none", "local model", "no GGUF file", '[local]\nmodel = "/etc/passwd"')


# Folders and files


@plants("a file in the state folder's place", "state", "cannot be written")
def _(house: House) -> None:
    shutil.rmtree(house.state)
    house.state.write_text("")


@plants("a state folder that others can read", "state", "mode 755")
def _(house: House) -> None:
    house.state.chmod(0o755)


@plants("a full disk", "disk", "MB are free")
def _(house: House) -> None:
    house.before = f"mount -t tmpfs -o size=1m,mode=700 none {house.state}"


@plants("a network file system", "file system", "network file system (nfs4)")
def _(house: House) -> None:
    lines = f"1 0 0:1 / / rw - ext4 /dev/root rw\n2 1 0:2 / {house.home} rw,relatime shared:1 - nfs4 host:/home rw\n"
    mounts = house.write("mountinfo", lines)
    house.before = f"mount -t tmpfs none /proc; mkdir /proc/self; cp {mounts} /proc/self/mountinfo"


def store_a_session(house: House) -> Path:
    assert house.run("-m", house.script({"text": "Hi."}), "-p", "hi").code == 0
    return house.state / "sessions.db"


@plants("a damaged database of sessions", "sessions", "is damaged")
def _(house: House) -> None:
    with store_a_session(house).open("r+b") as database:
        database.seek(4096)
        database.write(b"\xff" * 8192)


file(
    "a database of subagents that is none",
    "sessions",
    "agents.db is damaged",
    "home/state/agents.db",
    b"no database" * 99,
)


@plants("a database of a later version", "sessions", "newer")
def _(house: House) -> None:
    with sqlite3.connect(store_a_session(house)) as database:
        database.execute("PRAGMA user_version = 9999")


file("broken grants", "grants", "is damaged", "home/state/grants.json", "{")
file("grants that others can read", "grants", "open to others (mode 644)", "home/state/grants.json", "{}", 0o644)
file("broken trust", "trust", "is damaged", "home/state/trust.json", "[]")
file("broken kept keys", "keys", "could not be read", "home/credentials.json", "{")
file("kept keys that others can read", "keys", "not yours alone", "home/credentials.json", "{}", 0o644)


@plants("trust that is somebody else's", "trust", "belongs to another user")
def _(house: House) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(house.write("home/state/trust.json", "{}"), 12345, -1)


@plants("a lock that is held", "locks", "grants.lock locked")
def _(house: House) -> None:
    lock = house.stack.enter_context(house.write("home/state/grants.lock", "").open("w"))
    fcntl.flock(lock, fcntl.LOCK_EX)


file("a killed call", "leftovers", "Session 0199 was killed", "home/state/checkpoints/under_way/0199/1.json", "{}")
file("what was moved aside", "leftovers", "moved aside", "home/state/put_aside/agentcli-put-aside-1/hooks", "")


@plants("a huge log", "sizes", "agentcli.log has 60 MB")
def _(house: House) -> None:
    os.truncate(house.write("home/state/logs/agentcli.log", ""), 60_000_000)


@plants("huge checkpoints", "sizes", "checkpoints has 6.0 GB")
def _(house: House) -> None:
    os.truncate(house.write("home/state/checkpoints/objects/pack", ""), 6_000_000_000)


# Settings

setting("settings that are no TOML", "settings", "config.toml, line 6", "limits = [")
setting("an unknown setting", "settings", "there is no such setting", "[limits]\nmax_turn = 3")
setting("a wrong value", "settings", "limits.max_turns", '[limits]\nmax_turns = "three"')
setting(
    "a server's address with a wrong scheme", "settings", "http://", '[providers.b]\nbase_url = "ftp://example.org"'
)
setting("an unknown tool", "settings", "No tool 'file_red'", '[tools]\nonly = ["file_red"]')
setting("a host that is none", "settings", "sandbox.hosts", '[sandbox]\nhosts = ["a b"]')
setting("no such file of encoders", "settings", "encoders", '[tokens]\nencoders = "nowhere.toml"')
variable("an unknown variable", "settings", "AGENTCLI_LIMITS_MAX_TURN is no setting", AGENTCLI_LIMITS_MAX_TURN="3")
file("a project that is not trusted", "settings", "is not used", "project/.agentcli/config.toml", "")


@plants("a project that would choose the model", "settings", "[provider] is not taken from a project")
def _(house: House) -> None:
    house.write("project/.agentcli/config.toml", '[provider]\nmodel = "a/b"\n')
    house.trust()


@plants("settings that others can change", "settings", "Others can change")
def _(house: House) -> None:
    house.config.chmod(0o666)


# Models

variable("an unknown provider", "model", "No provider 'antropic'", AGENTCLI_MODEL="antropic/claude-sonnet-5-5")
variable(
    "a misspelt model", "model", "is in no table", AGENTCLI_MODEL="anthropic/claude-sonet-5-5", ANTHROPIC_API_KEY=KEY
)
variable("a model without its key", "model", "groq needs a key", AGENTCLI_MODEL="groq/llama")
variable("a local model that is not there", "model", "not installed", AGENTCLI_MODEL="local/default")
variable("a second model without a key", "model", "has no key", AGENTCLI_PROVIDER_FALLBACK_MODEL="groq/llama")
variable("a key with a line end in it", "key texts", "GROQ_API_KEY holds", GROQ_API_KEY=f"{KEY}\n{KEY}")
variable("a key in quotes", "key texts", "OPENAI_API_KEY holds", OPENAI_API_KEY=f'"{KEY}"')
variable("a malformed proxy", "proxies", "HTTPS_PROXY", HTTPS_PROXY="http://not a host")
variable("certificates that are not there", "certificates", "is not there", SSL_CERT_FILE="/nowhere.pem")
variable("certificates that are none", "certificates", "holds no certificates", SSL_CERT_FILE="/etc/passwd")


@plants("no model at all", "model", "No model is set up.")
def _(house: House) -> None:
    house.config.unlink()


@plants("kept keys with spaces", "key texts", "credentials.json holds")
def _(house: House) -> None:
    house.write("home/credentials.json", json.dumps({"GROQ_API_KEY": {"key": f" {KEY}"}}))


@plants("an address that is none", "servers", "ANTHROPIC_BASE_URL")
def _(house: House) -> None:
    house.environment |= {
        "AGENTCLI_MODEL": "anthropic/claude-sonnet-5-5",
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": "ftp://127.0.0.1",
    }


@plants("a server that is not there", "servers", "work/test-model: ")
def _(house: House) -> None:
    house.config.write_text(house.config.read_text().replace(house.server.url, refused_address()))


@plants("another server that is not there", "servers", "spare/any: ")
def _(house: House) -> None:
    house.set(f'[providers.spare]\nbase_url = "{refused_address()}"')


@plants("a server without the model", "servers", "work has no model 'absent'")
def _(house: House) -> None:
    house.environment["AGENTCLI_MODEL"] = "work/absent"


@plants("a key that its server refuses", "servers", "Incorrect API key")
def _(house: House) -> None:
    refused = json_reply({"error": {"message": "Incorrect API key"}}, 401)
    server = house.stack.enter_context(chat_server(models=refused))
    house.config.write_text(house.config.read_text().replace(house.server.url, server.url))


@plants("a key that goes out unencrypted", "servers", "goes to 192.0.2.1 unencrypted")
def _(house: House) -> None:
    house.set('[providers.clear]\nbase_url = "http://192.0.2.1:9"\napi_key_env = "WORK_KEY"')


def ollama(house: House, **how: Any) -> None:
    server = house.stack.enter_context(ollama_server(**how))
    house.environment |= {"OLLAMA_HOST": server.url, "AGENTCLI_MODEL": "ollama/qwen3"}


@plants("a model that Ollama has not pulled", "servers", "model 'qwen3' not found")
def _(house: House) -> None:
    ollama(house, show=json_reply({"error": "model 'qwen3' not found"}, 404))


@plants("an Ollama that does not run", "servers", "ollama/qwen3: ")
def _(house: House) -> None:
    house.environment |= {"AGENTCLI_MODEL": "ollama/qwen3"}


@plants("a window that is asked for too small", "servers", "window of 4,096 tokens")
def _(house: House) -> None:
    ollama(house)
    house.set("[tokens]\nollama_num_ctx = 4096")


@plants("a model with a small window", "servers", "window of 2,048 tokens")
def _(house: House) -> None:
    ollama(house, show=json_reply({**OLLAMA_SHOW, "model_info": {"qwen3.context_length": 2048}}))


# What the project and the person bring


def hook(command: str) -> str:
    return f"[[hooks.PreToolUse]]\n[[hooks.PreToolUse.hooks]]\ncommand = {json.dumps(command)}"


setting("a hook without its program", "hooks", "guard-them is not there", hook("guard-them --all"))
setting("a hook without its script", "hooks", "hooks/guard.sh is not there", hook("sh ~/hooks/guard.sh"))
setting("a hook for no event", "hooks", "no such event", '[[hooks.PreTool]]\ncommand = "true"')
setting("a rule that can never match", "rules", "no tool 'Bahs'", '[permissions]\nallow = ["Bahs(ls)"]')
setting("a rule for a server that is not there", "rules", "no server offers", '[permissions]\nallow = ["mcp__a__b"]')
setting("a missing folder", "folders", "is no folder", '[permissions]\nadditional_directories = ["../absent"]')
file("a skill that cannot be read", "skills", "is left out", "home/skills/broken/SKILL.md", "no frontmatter")
setting("no program of a server", "MCP servers", "absent is not there", '[mcp_servers.one]\ncommand = "absent"')
setting("a server's variable", "MCP servers", "ABSENT is not set", '[mcp_servers.one]\ncommand = "git${ABSENT}"')
setting("a server of no kind", "MCP servers", "neither a command", "[mcp_servers.one]\nargs = []")
file("an agent without a prompt", "agents", "defines no agent", "home/agents/empty.md", "---\nname: empty\n---\n")
file("instructions over their budget", "instructions", "32 KiB", "project/AGENTS.md", "word " * 8_000)


@plants("a broken file of hooks", "hooks", "hooks.json")
def _(house: House) -> None:
    house.write("project/.agentcli/hooks.json", "{")
    house.trust()


@plants("a grant that makes no sense", "rules", "This grant is left out")
def _(house: House) -> None:
    house.write("home/state/grants.json", json.dumps({str(house.folder): ["Bash("]}))


# Telemetry

setting(
    "a collector that is not there", "telemetry", "are lost: it does not answer",
    '[observability]\nmetrics = true\nendpoint = "http://127.0.0.1:9"',
)  # fmt: skip


@plants("a collector that refuses", "telemetry", "are lost: it answers 401")
def _(house: House) -> None:
    came = house.stack.enter_context(collector(status=401))
    house.set(f'[observability]\ntraces = true\nendpoint = "{came.url}"')


@plants("no extra for telemetry", "telemetry", "the extra otel is not installed")
def _(house: House) -> None:
    house.write("hidden/opentelemetry/__init__.py", "")
    house.environment["PYTHONPATH"] = str(house.folder.parent / "hidden")
    house.set("[observability]\ntraces = true")


def test_what_is_exported_where_is_told(house: House) -> None:
    with collector() as came:
        house.set(f'[observability]\ntraces = true\nmetrics = true\nendpoint = "{came.url}"\nheaders = {{ a = "b" }}')
        told = [one["message"] for one in house.doctor() if one["check"] == "telemetry"]
        assert told == [f"{signal} go to {came.url}/v1/{signal}" for signal in ("traces", "metrics")]
        assert [sent["a"] for sent in came.headers] == ["b", "b"]


# The terminal

variable("a dumb terminal", "terminal", "TERM is dumb", TERM="dumb")
variable("no terminal", "terminal", "TERM is not set", TERM="")
variable("another encoding", "encoding", "Text is encoded as", LC_ALL="POSIX")
variable("no colours", "colours", "NO_COLOR is set", NO_COLOR="1")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", PLANTS)
def test_a_planted_problem_is_found_with_its_mend(house: House, what: str) -> None:
    check, said, plant = PLANTS[what]
    before = {json.dumps(one) for one in wrong(house.doctor())}
    plant(house)
    if house.before and subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no namespaces to plant it in")
    found = [one for one in wrong(house.doctor()) if json.dumps(one) not in before]
    (told,) = [one for one in found if one["check"] == check and said in one["message"]][:1] or [None]
    assert told, found
    assert told["mend"], told
    assert KEY not in json.dumps(found)


@pytest.mark.full
def test_a_key_goes_to_its_own_provider_alone_and_all_are_asked_at_once(house: House) -> None:
    silent = [house.stack.enter_context(chat_server(models=SILENCE)) for _ in range(3)]
    other = house.stack.enter_context(chat_server())
    for number, server in enumerate(silent):
        house.set(f'[providers.silent{number}]\nbase_url = "{server.url}"')
    house.set(f'[providers.other]\nbase_url = "{other.url}"\napi_key_env = "OTHER_KEY"')
    house.environment |= {"OTHER_KEY": "ok-9876543210", "ANTHROPIC_API_KEY": "ak-5555"}
    found = wrong(house.doctor())
    came = [asked.came for server in silent for asked in server.others]
    assert max(came) - min(came) < 6  # one after the other the third would come after twice the 3 s
    assert sum("did not answer within 3 s" in one["message"] for one in found) == 3
    assert {one["status"] for one in found if one["check"] == "servers"} == {"warning"}
    for server, key in ((house.server, KEY), (other, "ok-9876543210")):
        assert [asked.headers["authorization"] for asked in server.others] == [f"Bearer {key}"]
    assert not any("authorization" in asked.headers for server in silent for asked in server.others)


def test_the_slash_command_tells_the_same(house: House) -> None:
    house.environment["TERM"] = "dumb"
    told = house.run("-m", house.script(), "-p", "/doctor").out
    assert "! terminal      TERM is dumb" in told
    assert f"{' ' * 16}→ export TERM=xterm-256color" in told
