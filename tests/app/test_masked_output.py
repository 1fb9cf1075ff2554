"""No tool shows a secret, however it is framed: its form gives it away, or a secret file of the workspace holds it."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentcli.infra.sandbox.backends.choosing import KINDS, choose_confinement
from tests.app.running import Place, call
from tests.app.terminal import Open

pytestmark = pytest.mark.slow  # each test starts the program

SHARED = Path(__file__).parents[2].parent / "shared/data/secrets.jsonl.gz"
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
_DICE = random.Random(7)


def _random(count: int) -> str:
    return "".join(_DICE.choice(_LETTERS) for _ in range(count - 1)) + "7"


_LINES = [base64.b64encode(_DICE.randbytes(48)).decode() for _ in range(12)]
_BODY = "\n".join(_LINES)
_TOKEN = f"ghp_{_random(36)}"


def pem(body: str, kind: str = "", more: str = "") -> str:
    return f"-----BEGIN {kind}PRIVATE KEY{more}-----\n{body}\n-----END {kind}PRIVATE KEY{more}-----"


# Texts, and what of them nobody may see.
SECRETS: dict[str, tuple[str, list[str]]] = {
    "PEM": (pem(_BODY), _LINES),
    "encrypted PEM": (pem(f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B2C3D\n\n{_BODY}", "RSA "), _LINES),
    "OpenPGP": (pem(f"Version: GnuPG v2\nComment: x\n\n{_BODY}\n=Cs4d", "PGP ", " BLOCK"), _LINES),
    "a PEM in YAML": ("key: |\n  " + pem(_BODY).replace("\n", "\n  "), _LINES),
    "a PEM in JSON": (json.dumps({"k": pem(_BODY)}), _LINES),
    "a cut off PEM": (pem(_BODY).partition("\n-----END")[0], _LINES),
    "the end of a PEM": (f"{_LINES[0][9:]}\n" + pem("\n".join(_LINES[1:])).partition("-----\n")[2], _LINES[1:]),
    "coloured": (
        f"\x1b[32m{_TOKEN}\x1b[0m \x1b[K{_TOKEN} \x1b[01;31m\x1b[K{_TOKEN[:9]}\x1b[m{_TOKEN[9:]}",
        [_TOKEN[9:]],
    ),
    "escaped": (f"{{\\u0022token\\u0022:\\u0022{_TOKEN}\\u0022}}", [_TOKEN]),
    "a coloured name": ("\x1b[33mpassword\x1b[0m=\x1b[36mhunter2xyz\x1b[0m", ["hunter2xyz"]),
    "settings": ("db.user=shop\ndb.password=hunter2xyz\n", ["hunter2xyz"]),
    "YAML": ("db:\n  passwd: hunter2xyz\n", ["hunter2xyz"]),
    "an address": ("DATABASE_URL=postgres://shop:hunter2xyz@db/shop", ["hunter2xyz"]),
    "a connection": ("Server=db;User Id=sa;Password=swordfish;", ["swordfish"]),
    "cookies": (f"Set-Cookie: sid={_TOKEN[4:]}; Path=/\nCookie: lang=en; connect.sid=s%3A{_TOKEN[4:]}", [_TOKEN[4:]]),
    "FCM": (f"key = AAAA{_random(7)}:APA91b{_TOKEN[4:40]}{_random(98)}", [_TOKEN[4:40]]),
    "Vercel": (f"vercel_blob_rw_{_random(16)}_{_TOKEN[4:34]}", [_TOKEN[4:34]]),
}
ANYTHING = ("--permission-mode", "bypassPermissions")
HARMLESS = 'password = os.environ["PASSWORD_1"]\npassword: str\npasswd: files systemd\ntoken = tokens[position]\n'


def answers(place: Place, calls: list[dict[str, Any]], **env: str) -> list[dict[str, Any]]:
    ran = place.run(*("tools", "run", *ANYTHING), stdin="\n".join(map(json.dumps, calls)), env=env)
    assert ran.code == 0, ran.err
    return ran.lines


def shown(answer: dict[str, Any], *, tool: str) -> str:
    """All that comes out of a call, but for the text of file_read that scripts get as it is."""
    assert not answer["is_error"] or "exit code 1" in answer["content"], answer
    parts = [answer["content"], answer["summary"], *([] if tool == "file_read" else [_texts(answer["structured"])])]
    return "\n".join(parts)


def _texts(value: Any) -> str:
    match value:
        case str():
            return value
        case dict():
            return "\n".join(map(_texts, value.values()))
        case list():
            return "\n".join(map(_texts, value))
    return ""


WAYS = {
    "file_read": lambda name: call("file_read", path=name),
    "cat -n": lambda name: call("bash", command=f"cat -n {name}"),
    "grep_search": lambda name: call("grep_search", pattern="^", path=name, limit=0),
    "many": lambda name: call(
        "bash",
        command="for show in 'cat -A' nl 'grep -n .' 'grep -H .' 'grep --color=always .' 'sed s/^/+/' 'sed s/^/>/'; "
        f"do $show {name}; done; diff -u /dev/null {name}",
    ),
}


def through(place: Place, way: str, texts: list[str]) -> list[str]:
    """What comes out for each of the texts, which lie in files of their own."""
    for number, text in enumerate(texts):
        (place.folder / f"note-{number}.txt").write_bytes(text.encode())
    calls = [WAYS[way](f"note-{number}.txt") for number in range(len(texts))]
    return [shown(answer, tool=one["name"]) for one, answer in zip(calls, answers(place, calls), strict=True)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_no_tool_shows_a_secret_and_all_show_the_rest(place: Place, way: str) -> None:
    out = through(place, way, [*(f"before\n{text}\nbehind\n" for text, _ in SECRETS.values()), HARMLESS])
    for (kind, (_, secrets)), text in zip(SECRETS.items(), out[:-1], strict=True):
        assert not [secret for secret in secrets if secret in text], (kind, text)
        assert "before" in text, kind
        assert "behind" in text, kind
    assert "masked" not in out[-1]
    assert 'os.environ["PASSWORD_1"]' in out[-1]


@pytest.mark.sampled(1)
@pytest.mark.skipif(not SHARED.exists(), reason="the shared rows lie outside the project")
@pytest.mark.parametrize("way", ["file_read", "cat -n", "grep_search"])
def test_of_the_shared_rows_as_many_are_masked_through_a_tool(place: Place, way: str) -> None:
    with gzip.open(SHARED, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if not row.get("lenient")]
    chosen = random.Random(1).sample(rows, 150)
    out = through(place, way, [row["input"] for row in chosen])
    wrong = [
        (row["input"], text)
        for row, text in zip(chosen, out, strict=True)
        if ("[masked: " in text) != (row["expected"] == "masked")
    ]
    assert len(wrong) <= 0.02 * len(chosen), wrong


_HEX = _DICE.randbytes(32).hex()
_SHA1, _MD5 = f"e7{_HEX[:38]}", f"e7{_HEX[:30]}"
_UUID = f"{_HEX[:8]}-{_HEX[8:12]}-{_HEX[12:16]}-{_HEX[16:20]}-{_HEX[20:32]}"
KNOWN = f"""\
sonar.scm.revision={_SHA1}
ENV SENTRY_CLI_SHA256={_HEX}
codecov-md5: {_MD5}
CLOUDFLARED_COMMIT={_SHA1}
cloudflare, {_SHA1}
| fix the cloudflare worker | {_SHA1} |
sourcegraph_revision: {_SHA1}
linear: {_MD5}
"sentry-cli-checksum": "{_HEX}"
mailgunDigest = {_MD5}
heroku_release_id={_UUID}
hubspot.request_id = {_UUID}
snykTraceId: {_UUID}
secret: kube-system/default-token-x7k9p
auth_mode: oauth2_pkce_s256_v1
passphrase: minLength8AndMaxLength64
token_sha256: {_HEX}
"""
KEYS = f"""\
sonar.login={_SHA1}
SENTRY_RELEASE_TOKEN={_HEX}
codecov_token: {_MD5}
CLOUDFLARE_API_KEY={_SHA1}
cloudflare token, {_SHA1}
| the cloudflare api key | {_SHA1} |
LINEAR={_MD5}
"mailgun": {{"signingKey": "key-{_MD5}"}}
herokuApiKey={_UUID}
sendbird_app_id = {_UUID}
"""


def test_hashes_and_ids_beside_the_name_of_a_provider_are_shown_and_keys_are_not(place: Place) -> None:
    (place.folder / "known.txt").write_text(KNOWN)
    (place.folder / "keys.txt").write_text(KEYS)
    known, keys = answers(place, [call("bash", command="cat known.txt"), call("bash", command="cat keys.txt")])
    assert known["content"] == KNOWN.rstrip()
    assert [line for line in keys["content"].splitlines() if "[masked: " not in line] == []


# What secret files hold

ENV = f"""\
DEBUG=true
PORT=8080
APP_NAME=corner-shop
DB_PASSWORD=hunter2x
export JWT_SECRET='some "long" pass phrase'
STRIPE={_TOKEN}
ADMIN_PASSWORD=password
DATABASE_URL=postgres://app:p%40ss-wort@db/x
SMTP_PASSWORD=in-a-tracked-file
EXPIRY_TOKEN_URL=https://example.org/token
"""
NOTES = f"""\
I log in with hunter2x, in base64 {base64.b64encode(b"hunter2x").decode()},
or with some "long" pass phrase, or "some \\"long\\" pass phrase", or p%40ss-wort, or abcd-efgh-1.
{_LINES[3]}
true 8080 corner-shop password in-a-tracked-file https://example.org/token
"""
COMMIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm")
HIDDEN = ["hunter2x", base64.b64encode(b"hunter2x").decode()[:8], "pass phrase", "p%40ss", "abcd-efgh-1", _LINES[3]]


@pytest.fixture
def shop(place: Place) -> Place:
    """A workspace with secret files, and notes that have what is in them."""
    (place.folder / ".env").write_text(ENV)
    (place.folder / "secrets.json").write_text(json.dumps({"api": {"token": "abcd-efgh-1", "name": "corner-shop"}}))
    (place.folder / "server.key").write_text(pem(_BODY))
    (place.folder / "notes.md").write_text(NOTES)
    (place.folder / "compose.yml").write_text("smtp: in-a-tracked-file\n")
    subprocess.run(["git", "init", "-q"], cwd=place.folder, check=True)
    subprocess.run(["git", "add", "compose.yml"], cwd=place.folder, check=True)
    subprocess.run([*COMMIT, "Begin"], cwd=place.folder, check=True)
    return place


@pytest.mark.parametrize("kind", ["auto", "landlock"])
def test_contents_of_secret_files_are_masked_in_every_output(shop: Place, kind: str) -> None:
    if choose_confinement(tmp=shop.home.parent, kinds=(kind,) if kind != "auto" else KINDS["linux"]).name == "none":
        pytest.skip(f"{kind} confines nothing here")
    calls = [
        call("bash", command="grep -rhn . . --exclude-dir=.git; cat notes.md"),
        call("file_read", path="notes.md"),
        call("grep_search", pattern="."),
    ]
    for one, answer in zip(calls, answers(shop, calls, AGENTCLI_SANDBOX_KIND=kind), strict=True):
        text = shown(answer | {"is_error": False}, tool=one["name"])
        assert not [secret for secret in HIDDEN if secret in text], text
        for plain in NOTES.splitlines()[-1].split():
            assert plain in text, (plain, text)


@pytest.mark.parametrize(
    ("name", "input"),
    [
        ("file_read", {"path": "{secret}/nope"}),
        ("file_list", {"path": "{secret}"}),
        ("file_edit", {"path": "{secret}", "old_string": "a", "new_string": "b"}),
        ("grep_search", {"pattern": "x", "path": "{secret}"}),
        ("bash", {"command": "ls", "cwd": "{secret}"}),
        ("{secret}", {}),
    ],
)
def test_no_error_says_what_a_secret_file_holds(place: Place, name: str, input: dict[str, Any]) -> None:
    secret = "hunter2secretvalue99"
    (place.folder / ".env").write_text(f"TOKEN={secret}\n")
    given = json.loads(json.dumps({"id": "1", "name": name, "input": input}).replace("{secret}", secret))
    (answer,) = answers(place, [given])
    assert answer["is_error"]
    assert secret not in json.dumps(answer)
    assert "[masked: known-secret]" in answer["content"]


def test_without_git_nothing_is_taken_for_public(shop: Place) -> None:
    (shop.folder / ".git").rename(shop.folder / "gone")
    (answer,) = answers(shop, [call("bash", command="tail -1 notes.md")])
    assert answer["content"] == "true 8080 corner-shop password [masked: known-secret] https://example.org/token"


PUBLISH = {
    "the index": "git add -N notes.md",
    "the index, whole": "git add notes.md",
    "a commit": f"git add notes.md && {' '.join(COMMIT)} Publish",
    "a replaced file": "cp notes.md compose.yml && git replace -f HEAD:compose.yml $(git hash-object -w notes.md)",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", PUBLISH)
def test_no_command_makes_a_secret_public_with_git(shop: Place, way: str) -> None:
    # The last secret is new, so what was found before does not hold.
    done, read, again, _, new = answers(
        shop,
        [
            call("bash", command=f"{PUBLISH[way]} && echo done"),
            call("bash", command="cat notes.md"),
            call("file_read", path="notes.md"),
            call("bash", command="echo 'API_KEY=zzzz-new-1' > new.env"),
            call("bash", command="cat notes.md"),
        ],
    )
    assert done["content"] == "done"
    for answer in (read, again, new):
        text = shown(answer, tool="file_read")
        assert not [secret for secret in HIDDEN if secret in text], text
        assert "in-a-tracked-file" in text


def test_git_output_about_secret_files_is_masked_like_the_files(place: Place) -> None:
    """A value of HEAD, one of the index, one of a file that is tracked no more, and one that a call commits."""
    (place.folder / "app").mkdir()

    def git(*arguments: str) -> None:
        subprocess.run(("git", *arguments), cwd=place.folder, check=True)

    git("init", "-q")
    (place.folder / ".env").write_text("API_KEY=head-corner-91\n")
    (place.folder / "app/.env").write_text("API_KEY=gone-corner-92\n")
    git("add", ".")
    subprocess.run([*COMMIT, "Begin"], cwd=place.folder, check=True)
    git("rm", "-q", "app/.env")
    (place.folder / ".env").write_text("API_KEY=index-corner-93\n")
    git("add", ".env")
    (place.folder / ".env").unlink()
    values = "sed s/.API_KEY=//"  # so that nothing but the values gives them away
    shown = answers(
        place,
        [
            call("bash", command=f"git log -p | {values}"),
            call("bash", command=f"git diff --cached | {values}"),
            call("bash", command="git archive HEAD | tr -d '\\000' | tail -c 300"),
            call("bash", command=f"{' '.join(COMMIT)} Go on"),
            call("bash", command=f"git log -p | {values}"),
        ],
    )
    text = json.dumps(shown)
    assert [word for word in ("head", "gone", "index") if f"{word}-corner" in text] == []
    assert text.count("[masked: known-secret]") > 6


def test_without_a_commit_nothing_is_taken_for_public(shop: Place) -> None:
    shutil.rmtree(shop.folder / ".git")
    subprocess.run(["git", "init", "-q"], cwd=shop.folder, check=True)
    subprocess.run(["git", "add", "compose.yml"], cwd=shop.folder, check=True)
    (answer,) = answers(shop, [call("bash", command="cat compose.yml")])
    assert answer["content"] == "smtp: [masked: known-secret]"


@pytest.mark.parametrize(
    "command",
    ["cat n.txt", "cat n.txt >&2; false", "echo API_KEY=zzzz-new-1 > new.env; echo zzzz-new-1 hunter2x"],
)
def test_the_model_reads_no_secret_in_the_output_of_a_command_in_a_prompt(shop: Place, command: str) -> None:
    (shop.folder / "n.txt").write_text(f"hunter2x\n{_TOKEN}\n")
    (shop.folder / ".agentcli/commands").mkdir(parents=True)
    (shop.folder / ".agentcli/commands/ctx.md").write_text(f"---\nallowed-tools: Bash\n---\nCtx: !`{command}`")
    ran = shop.run("-p", "/ctx", "--trust", "-m", shop.script({"text": "Read."}), "--output-format", "json", *ANYTHING)
    assert ran.code == 0, ran.err
    shown = shop.run("sessions", "show", ran.result["session_id"], "--json").out
    assert "Ctx: [masked: known-secret]" in shown
    assert not re.search(f"hunter2x|{_TOKEN}|zzzz-new", shown + ran.out + ran.err)


def test_a_secret_file_that_a_command_writes_counts_at_once(shop: Place) -> None:
    deep = "packages/api/config/local"
    made, read, another = answers(
        shop,
        [
            call("bash", command=f"mkdir -p {deep} && echo 'API_KEY=zzzz-new-1' > {deep}/.env && echo zzzz-new-1"),
            call("bash", command="echo zzzz-new-1 hunter2x"),
            call("bash", command="echo 'password: other-word' > secrets.yml; echo other-word"),
        ],
    )
    assert made["content"] == "[masked: known-secret]"
    assert read["content"] == "[masked: known-secret] [masked: known-secret]"
    assert another["content"] == "[masked: known-secret]"


def test_a_secret_file_that_a_rule_shows_is_shown_as_it_is_and_only_there(shop: Place) -> None:
    (shop.folder / ".env").write_text("JWT_SECRET='some long pass phrase'\n")
    calls = [call("file_read", path=".env"), call("bash", command="echo some long pass phrase")]
    shown_file, echoed = answers(shop, calls, AGENTCLI_PERMISSIONS_ALLOW="file_read(.env)")
    assert shown_file["content"] == "1\tJWT_SECRET='some long pass phrase'"
    assert echoed["content"] == "[masked: known-secret]"


def test_each_line_of_a_quoted_value_is_masked_and_words_that_say_how_are_not(shop: Place) -> None:
    (shop.folder / ".env").write_text('MULTI_SECRET="line1abcdefgh\nline2ijklmnop"\nTOKEN_STRATEGY=refreshable\n')
    (answer,) = answers(shop, [call("bash", command="echo line2ijklmnop, line1abcdefgh, refreshable")])
    assert answer["content"] == "[masked: known-secret], [masked: known-secret], refreshable"


def test_odd_secret_files_do_no_harm(shop: Place) -> None:
    for name, content in {
        "a.pem": b"\xff\xfe\0\1",
        "b.key": b"x" * 300_000,
        "c.env": b"=\n:::\nPASSWORD=\n" * 999,
    }.items():
        (shop.folder / name).write_bytes(content)
    (shop.folder / "d.env").symlink_to("nowhere")
    subprocess.run(["mkfifo", "e.env"], cwd=shop.folder, check=True)
    (answer,) = answers(shop, [call("bash", command="echo x: hunter2x")])
    assert answer["content"] == "x: [masked: known-secret]"


# What people and models write


def test_an_export_holds_no_key_that_the_person_or_the_model_wrote(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal([{"text": f"Use {_TOKEN} or postgres://app:hunter2xyz@db/x."}])
    terminal.type(f"is password=hunter9xyz the same as {_TOKEN}?\r")
    terminal.see("or postgres")
    terminal.rest()
    terminal.type("/export out.md\r")
    terminal.see("Exported to")
    text = (tmp_path / "project/out.md").read_text()
    assert not re.search(f"{_TOKEN}|hunter", text)
    assert text.count("[masked: ") >= 4
    assert "is password=" in text


def test_a_key_within_which_a_long_output_is_cut_is_masked_on_both_sides(place: Place) -> None:
    """The end of a long output, the second page of one, and a read from a line on begin within the key."""
    lines = [base64.b64encode(_DICE.randbytes(48)).decode() for _ in range(50)]
    key = pem("\n".join(lines))
    (place.folder / "cut.txt").write_text("word\n" * 8_000 + key + "\nafter\n" + "word\n" * 2_700)
    (place.folder / "paged.txt").write_text("word\n" * 2_700 + key + "\nafter\n" + "word\n" * 8_000)
    calls = [call("bash", command="cat cut.txt"), call("bash", command="cat paged.txt", output_level="full")]
    calls.append(call("file_read", path="cut.txt", offset=8_020))
    more = [call("read_more", result_id="call_1_2", page=page) for page in (1, 2)]
    script = place.script({"tool_calls": calls}, {"tool_calls": more}, {"text": "."})
    ran = place.run("-m", script, "-p", "go", "--output-format", "stream-json")
    assert [line for line in lines if line in ran.out] == []
    assert ran.out.count("after") >= 3
