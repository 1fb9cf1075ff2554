"""The values that a file of settings keeps secret are found, whatever its format, and plain settings are not."""

from __future__ import annotations

import time

import pytest

from agentcli.safety.secrets.settings import secret_values
from tests.rows import each_row

LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
ENV = r"""
DEBUG=true
PORT=8080
APP_NAME=shop
DB_PASSWORD=hunter2x
export X_TOKEN='with spaces in it' # why
Y_SECRET=word-and-more # why
Z_KEY=users
STRIPE_KEY=9f8a7b6c5d4e3f2a1b0c9d8e
TOKEN_EXPIRY=36000000000
A_PASSWORD=password
B_PASSWORD=${DB_PASSWORD}
C_CREDENTIALS=/home/u/key.json
D_PASSWORD=short
E_PASS=ab12cd
NEXT_PUBLIC_KEY=users-of-shop
F_PASSWORD=12345678
URL=postgres://app:p%40ss-wort@db/x
"""
YAML = """
db:
  password: hunter2x
  name: application
  secret: |
    second-line5
other: {token: 'abcdef123', n: 1}
"""
FILES = {
    "dotenv": (
        ENV,
        {"hunter2x", "with spaces in it", "word-and-more", "9f8a7b6c5d4e3f2a1b0c9d8e", "ab12cd", "p%40ss-wort"},
    ),
    "JSON": (
        '{"db": {"password": "hunter2x", "user": "app"}, "apiKey": "k\\"quoted-1", "passwords": ["one-pass-1"]}',
        {"hunter2x", 'k"quoted-1', "one-pass-1"},
    ),
    "names that only speak of secrets": (
        (
            "SECRETS_PROVIDER=kubernetes\nTOKEN_STRATEGY=refreshable\nPASSWORD_RESET_VIEW=accounts\n"
            "SESSION_TOKEN_TRANSPORT=websocket\nPASS_THROUGH=everything\nREQUIRE_PASSWORD_CHANGE=sometimes\n"
            "SECRETS_BACKEND=hashicorp-vault\nTOKEN_STORE=localStorage\npassword_encoder: ARGON_DEFAULTS\n"
        ),
        set(),
    ),
    "names that end in one": (
        (
            "A_PASSWORD=swordfish\nB_PASSWORD_2=swordfishes\nC_SECRET_OLD=cuttlefish\nD_API_KEY=jellyfishes\n"
            "accessToken: crawfishes\nTOKEN_OF_BOB=qX7-rst-9\nRESET_TOKEN_VIEW=abcdefghijklmnopqrstuvwxyzabc\n"
        ),
        {"swordfish", "swordfishes", "cuttlefish", "jellyfishes", "crawfishes", "qX7-rst-9"}
        | {"abcdefghijklmnopqrstuvwxyzabc"},
    ),
    "several lines": (
        (
            "A_SECRET=\"line1abcdefgh\nline2ijklmnop\"\r\nB_TOKEN='third-line-3\r\n  fourth-line-4' # why\n"
            'c_password = """\nfifth-line-5\nsay \\"six\\" again\n"""\nD_SECRET="seven\\neighth-line-8"\n'
            'E_SECRET="ninth-line-9\nNAME="corner-shop"\nF_SECRET="tenth-line-10\n'
        ),
        {"line1abcdefgh", "line2ijklmnop", "third-line-3", "fourth-line-4", "fifth-line-5", 'say "six" again'}
        | {"eighth-line-8", "ninth-line-9", "tenth-line-10", 'say \\"six\\" again', "seven\\neighth-line-8"},
    ),
    "JSON of several lines": (
        (
            'GOOGLE_CREDENTIALS=\'{\n  "type": "service_account",\n  "private_key_id": "0123",\n'
            '  "client_secret": "very-hidden-1"\n}\'\n'
        ),
        {"very-hidden-1"},
    ),
    "YAML": (YAML, {"hunter2x", "second-line5", "abcdef123"}),
    "TOML": ('[db]\npassword = "swordfish"\nhost = "database-1"\n', {"swordfish"}),
    "XML": ("<server><username>application</username><password>hunter2x</password></server>", {"hunter2x"}),
    "netrc": ("machine example.org login application password hunter2x\n", {"hunter2x"}),
    "pgpass": ("db.example.com:5432:app:app:hunter2xyz\n", {"hunter2xyz"}),
    "git-credentials": ("https://alice:hunter2xyz@example.org\n", {"hunter2xyz"}),
    "a token alone": ("some-long-token-1\n", {"some-long-token-1"}),
    "a key": (
        f"-----BEGIN PRIVATE KEY-----\n{LINE}\nMzEfYyjiWA4R4==\n-----END PRIVATE KEY-----\n",
        {LINE},
    ),
    "a key in quotes": (
        (
            f'A_KEY="-----BEGIN PRIVATE KEY-----\n{LINE}\n-----END PRIVATE KEY-----"\n'
            f'{{"secret_key": "-----BEGIN PRIVATE KEY-----\\n{LINE}\\n-----END PRIVATE KEY-----"}}\n'
        ),
        {LINE},
    ),
    "a certificate": (
        "-----BEGIN CERTIFICATE-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw\n-----END CERTIFICATE-----\n",
        set(),
    ),
    "nothing": ("", set()),
}


@each_row("kind", FILES)
def test_the_secret_values_of_a_file_are_found_and_plain_settings_are_not(kind: str) -> None:
    text, secrets = FILES[kind]
    found = secret_values(text)
    assert secrets <= found
    plain = {value for value in found if not any(secret in value or value in secret for secret in secrets)}
    assert plain <= {"p@ss-wort", 'k\\"quoted-1'}


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", ["password: x: ", "A_KEY=b\n", "<a>", "password:", "token=[", 'secret="\\', 'secret="', "token='''\n"]
)
def test_hostile_files_take_a_moment(unit: str) -> None:
    text = unit * (256_000 // len(unit))
    began = time.process_time()
    secret_values(text)
    assert time.process_time() - began < 20  # measured: 0.5 s
