"""A path is judged by its text: secrets, files that make programs run, disguises, places outside."""

import json
import tomllib
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.safety.paths import judge
from agentcli.safety.paths.judge import (
    SECRET_HOME_PATHS,
    PathKind,
    auto_executed,
    is_auto_executed,
    is_reviewed,
    is_secret,
    is_special,
    judge_path,
)
from tests.rows import each_row

SHARED = Path(__file__).parents[3].parent / "shared/data/paths.jsonl"
WORKSPACE, HOME = Path("/ws"), Path("/home/u")


def judged(path: str, access: str = "read", **places: object) -> PathKind:
    return judge_path(path, **({"access": access, "cwd": WORKSPACE, "roots": [WORKSPACE], "home": HOME} | places))


@each_row(
    "path",
    """
    src/main.py /ws/./a//b.txt a/../b . ./... ... a/..b/c -rf $HOME 文件/测试.py src/e\u0301.py 100%.txt a%20b.txt
    price-5%25.csv ﬁle.txt wait….md café.md 👨\u200d👩.txt a:b.txt build~ docs/aux/notes.md src/aux.c conduit.py
    nullable.rs proc/cpuinfo.txt dev/notes.md src/key.py keys.md test.key.js public.pem ca.pem id_rsa.pub
    src/id_ed25519.test.ts environment.ts env.d.ts .env.example .env.sample .env.local.example .env.dist
    .envoy.yaml src/credentials.py docs/credentials.md secrets/README.md agentcli/safety/secrets/rules.py
    secrets.py server.crt .npmrc .github/workflows/ci.yml .git/HEAD .git/config .vscode/settings.json
    .agentcli/config.toml .bundle/config tokens.json package-lock.json
    """.split(),
)
def test_an_everyday_path_of_a_project_is_read_without_a_word(path: str) -> None:
    assert judged(path) == "plain"


@each_row(
    "path",
    """
    src/main.py .gitignore .gitmodules AGENTS.md CLAUDE.md pyproject.toml package.json conftest.py .npmrc
    Dockerfile .github/workflows/ci.yml src/git/config profile
    src/vscode/tasks.json a.git
    """.split(),
)
def test_an_everyday_file_of_a_project_is_written_without_a_word(path: str) -> None:
    assert judged(path, "write") == "plain"


@pytest.mark.parametrize("path", ["../x", "..", "../", "/etc/passwd", "//etc/passwd", "/ws-evil/x", "/", "a/../../x"])
def test_paths_below_no_root_are_outside(path: str) -> None:
    assert judged(path) == "outside"


def test_a_second_root_and_the_current_folder_count() -> None:
    assert judged("x.py", cwd=Path("/ws/a"), roots=[WORKSPACE]) == "plain"
    assert judged("../x.py", cwd=Path("/ws/a"), roots=[WORKSPACE]) == "plain"
    assert judged("/other/x.py", roots=[WORKSPACE, Path("/other")]) == "plain"
    assert judged("~/ws2/x.py", roots=[HOME / "ws2"]) == "plain"
    assert judged("x.py", roots=[]) == "outside"


@each_row(
    "path",
    [
        *"""
        .env .env.local .env.production .ENV .Env.Local .env-prod prod.env docker/app.env config/.env.
        sub/.env::$DATA ．env ENV~1 .e\u200cnv server.key tls.pem CLIENT.PEM cert.p12 a.pfx release.jks
        debug.keystore vault.kdbx id_rsa ID_RSA id_ed25519 id_rsa_work id_ecdsa_sk .netrc _netrc .pgpass
        .git-credentials .htpasswd credentials.json client_secret_123.apps.json service-account.json
        secrets.yaml terraform.tfstate .ssh/config ~/.ssh/config ~/.npmrc ~/.pypirc ~/.aws/config
        ~/.docker/config.json ~/.kube/config ~/.config/gh/hosts.yml ~/.config/gcloud/x ~/.bash_history
        /root/.ssh/authorized_keys /etc/shadow /etc/ssh/ssh_host_ed25519_key /run/secrets/db
        /var/run/secrets/kubernetes.io/token ~/.config/agentcli/config.toml ~/.agentcli/credentials.json
        ~/.local/state/agentcli/sessions.db ../.aws/credentials fixtures/.gnupg/x
        """.split(),
        "~/Library/Application Support/Google/Chrome/Default/Cookies",
        ".env ",
    ],
)
@each_row("access", ["read", "write"])
def test_a_secret_is_known_by_its_name_or_its_folder(path: str, access: str) -> None:
    assert judged(path, access) == "secret"


@pytest.mark.parametrize("path", ["~/.ssh/id_rsa.pub", "~/.ssh/work.PUB"])
def test_a_public_key_is_not_a_secret(path: str) -> None:
    assert judged(path) == "outside"


@each_row("path", SECRET_HOME_PATHS)
def test_all_that_a_sandbox_hides_in_a_home_is_a_secret_here_too(path: str) -> None:
    assert judged(f"~/{path}") == "secret"
    assert judged(f"/home/u/{path.upper()}") == "secret"
    assert judged(f"{HOME / path}/below/x") == "secret"


@each_row(
    "path",
    """
    .git .git/config .git/hooks/pre-commit .git/info/attributes .git/modules/x/config git~1/config GIT~1/hooks/x
    .GIT/config .git./config .g\u200cit/config sub/.git/config bare.git/hooks/update .gitattributes
    sub/.gitattributes GITATT~1 .agentcli/settings.json AGENTC~1/x .vscode/tasks.json .VSCODE/tasks.json
    packages/a/.vscode/x .idea/workspace.xml .cursor/mcp.json .claude/settings.json .codex/config.toml
    .gemini/settings.json .envrc .bashrc .zshrc .profile .husky/pre-commit .pre-commit-config.yaml .mcp.json
    lefthook.yml .hg/hgrc ~/.bashrc ~/.config/fish/config.fish ../.vscode/tasks.json
    ~/Library/LaunchAgents/x.plist ~/.config/agentcli/plugins/x/hooks/run.sh
    """.split(),
)
def test_what_makes_programs_run_may_be_read_and_not_simply_written(path: str) -> None:
    assert judged(path, "write") == "protected"
    assert judged(path, "read") in ("plain", "outside")


def test_a_name_that_folds_to_nothing_is_one_like_any_other() -> None:
    assert not is_auto_executed(PurePath("\u200b/x"))
    assert is_auto_executed(PurePath("\u200b/.vscode/tasks.json"))


@each_row("name", [name.replace("*", "x") for name in (*auto_executed().names, *auto_executed().reviewed)])
def test_every_protected_name_is_protected_in_any_case_and_at_any_depth(name: str) -> None:
    for path in (name, name.upper(), f"a/b/{name}", f"{name}/x"):
        assert is_auto_executed(PurePath(path))


@each_row(
    "path",
    """
    opencode.json opencode.jsonc .aider.conf.yml crush.json .qwen/settings.json .kimi/config.toml .vibe/config.toml
    .factory/mcp.json .trae/mcp.json .antigravity/x .helix/languages.toml .vs/tasks.vs.json x.code-workspace
    X.CODE-WORKSPACE .Rprofile .pryrc .lvimrc .jj/repo/config.toml sub/crush.json
    """.split(),
)
def test_files_that_agents_editors_and_consoles_execute_are_protected_from_commands(path: str) -> None:
    assert judged(path, "write") == "protected"
    assert not is_reviewed(PurePath(path))


@each_row(
    "path",
    """
    lefthook.yaml lefthook.toml .lefthook-local.json .config/lefthook.yml .devcontainer/devcontainer.json .jj/x
    .githooks/pre-commit mise.toml .newagent/mcp.json a/.newagent/hooks/x .github/agents/x.md .envrc
    """.split(),
)
def test_what_a_project_reviews_asks_and_is_left_to_commands(path: str) -> None:
    assert judged(path, "write") == "protected"
    assert is_reviewed(PurePath(path))


def test_each_group_of_auto_executed_files_says_where_that_is_documented() -> None:
    kinds = {"names", "reviewed", "home", "git", "in_dot_folders"}
    groups = tomllib.loads(Path(judge.__file__).with_name("auto_executed.toml").read_text("utf-8"))
    for name, group in groups.items():
        assert group.keys() - {"at_start"} <= kinds | {"source"}, name
        assert group.keys() & kinds, name
        assert all(page.startswith(("https://", "docs/")) for page in group["source"]), name


def test_the_names_above_a_workspace_do_not_matter_for_what_is_in_it() -> None:
    root = HOME / ".claude/worktrees/x"
    assert judged("a.py", "write", cwd=root, roots=[root]) == "plain"
    assert judged(".claude/x", "write", cwd=root, roots=[root]) == "protected"


@each_row(
    "path",
    [
        *"""
        /proc/self/maps /proc/self/root/etc/passwd /proc/self/cwd/../../etc/passwd /dev/stdin /dev/fd/3
        /dev/sda /sys/kernel //proc/self/environ /./dev/zero /ws/../proc/1/status ../proc/self/cmdline
        file:///etc/passwd FILE:/etc/passwd https://x.test/a \\\\server\\share \\\\?\\C:\\x //?/etc/passwd C:\\x
        c:/x ..\\..\\x a\\b CON nul con. COM1 sub/NUL %2e%2e/%2e%2e/etc %252e%252e/x a%2fb ..%2f..%2fx ．．/．．/etc
        ‥/x a／b ....//....//etc ..././..././etc .../...//etc ~root/.bashrc $HOME/x ${HOME}/x %TEMP%/x
        """.split(),
        "",
        "a\0b",
        "a\nb",
        "a\x1b[2Jb",
        "a\u202egpj.exe",
        "a\u200bb",
        "a\ud800b",
        ".. /x",
        "a/. ./b",
        "a" * 256,
        "é" * 128,
        "d/" * 300 + "x",
        "d" * 200 + ("/" + "d" * 200) * 30,
    ],
)
@each_row("access", ["read", "write"])
def test_a_disguise_a_device_or_an_address_is_odd(path: str, access: str) -> None:
    assert judged(path, access) == "odd"


@pytest.mark.parametrize("path", "/proc/self/environ /ws/../proc/1/environ ../proc/self/environ /proc/7/mem".split())
def test_what_a_program_holds_is_secret(path: str) -> None:
    assert judged(path) == "secret"


def test_a_workspace_may_be_called_anything() -> None:
    root = Path("/home/u/caf\udce9 \u202eworks")
    for path in ("a.py", f"{root}/a.py", str(root), "."):
        assert judged(path, cwd=root, roots=[root]) == "plain"
    assert judged(f"{root}/caf\udce9", cwd=root, roots=[root]) == "plain"
    assert judged(f"{root}/caf\ud83d", cwd=root, roots=[root]) == "odd"
    assert judged(f"{root}/caf\u202e", cwd=root, roots=[root]) == "odd"
    assert judged(f"{root}x/a.py", cwd=root, roots=[root]) == "odd"
    assert judged("", cwd=root, roots=[root]) == "odd"


def test_a_workspace_in_memory_is_one_like_any_other() -> None:
    root = Path("/dev/shm/work")
    assert judged("a.py", cwd=root, roots=[root]) == "plain"
    assert judged("/dev/shm/work/a.py", cwd=root, roots=[root]) == "plain"
    assert judged("/dev/shm/other", cwd=root, roots=[root]) == "odd"


def test_the_longest_name_is_not_odd() -> None:
    assert judged("a" * 255) == "plain"
    assert judged("é" * 127) == "plain"


def test_without_a_home_secrets_are_known_anyway() -> None:
    assert is_secret(PurePath("/home/u/.ssh/config"), None)
    assert is_secret(PurePath("/srv/.aws/credentials"), None)
    assert not is_secret(PurePath("/home/u/.npmrc"), None)
    assert judged("~/x", home=None) == "plain"


def test_only_what_the_kernel_shows_is_special() -> None:
    assert is_special(PurePath("/dev/null"))
    assert not is_special(PurePath("/developer/x"))
    assert not is_special(PurePath("dev/x"))


@given(st.text(max_size=40), st.sampled_from(["read", "write"]))
def test_any_text_gets_a_verdict(path: str, access: str) -> None:
    assert judged(path, access) in ("plain", "outside", "secret", "protected", "odd")


@given(st.lists(st.sampled_from(["..", ".", "a", "/", "//", ".../", "\\", "%2e", "．", " ", "~"]), max_size=12))
def test_a_plain_path_stays_in_the_workspace_however_it_is_read(parts: list[str]) -> None:
    path = "/".join(parts)
    if judged(path) == "plain":
        assert (WORKSPACE / path).resolve().is_relative_to(WORKSPACE)


# Labelled an ordinary file of a project, although editors run what it names when they open the project.
DISPUTED = {".devcontainer/devcontainer.json"}


@pytest.mark.skipif(not SHARED.exists(), reason="the shared rows lie outside the project")
def test_the_shared_rows_without_a_disk_get_the_expected_verdicts() -> None:
    rows = [row for row in map(json.loads, SHARED.read_text("utf-8").splitlines()) if "setup" not in row]
    for row in rows:
        kind = judged(row["input"], row["op"])
        if row.get("protected") or row["input"] in DISPUTED:
            assert kind == "protected", row
        elif row["expected"] == "allow" or row.get("protected") is False:
            assert kind == "plain", row
        else:
            assert kind != "plain", row
