"""Secrets that only their place gives away: in headers, URLs, command lines, assignments; and tokens in parts.

Passwords have no format, so these rules go by the name before a value and by what `values` says of it.
"""

from __future__ import annotations

from agentcli.tools.secrets.named import GIVES, spellings
from agentcli.tools.secrets.rule import Rule, anything, has_random_digits
from agentcli.tools.secrets.values import (
    is_assigned,
    is_credential,
    is_discord,
    is_password,
    is_password_setting,
    is_quoted_password,
    is_token_in_parts,
    is_url_password,
    is_user_key,
)

_KEYS = """
    token secret api-key access-key private-key auth-key encryption-key signing-key account-key creds credential
    credentials
"""
_PASSWORDS = "password passwd passphrase passwort pwd"
# Names of what is known about a secret, and tokens that turn pages.
_NAMES_ONLY = (
    r"(?![\w.-]{0,40}?(?i:id|url|uri|name|file|path|dir|size|len|length|count|type|expiry|hash|host|version|min|max|ttl"
    r"|field|label|prefix|policy)s?(?![a-z]))(?<![Nn]ext_)(?<![Nn]ext)(?<![Pp]age_)(?<![Pp]age)(?<![Cc]ontinuation)"
)
_VALUE = (
    r"((?<=[\"'`])[^\s\"'`]{8,2000}(?=[\"'`])|"
    r"[^\s\"'`,;&=()\[\]{}<>\\]{8,200}+[\w+/.-]{0,2000}+={0,2}+(?![(\[]))"
)
_SCHEME = r"(?:(?i:bearer|basic|token|api-?key|api-?token|key|oauth|jwt|splunk|ssws|geniekey|bot)[ \t]{1,3})?"

CONTEXTS = (
    Rule(
        "jwt",
        "ey",
        r"(?<![_-])ey[\w-]{10,3000}\.ey[\w/-]{10,3000}(?:\.(?:\\?/|[\w-]){0,1500}={0,2})?(?![\w-])",
        "eyJhbGciOi{w20}.eyJ{w60}.{u43}",
        "eyJhbGciOi{w20}",
        is_secret=is_token_in_parts,
    ),
    Rule(  # the same, in base64 once more
        "jwt",
        "ZXlK",
        r"(?<![_-])ZXlK[\w+/-]{60,4000}={0,2}(?![\w+/-])",
        "ZXlKaGJHY2lP{w90}",
        "ZXlKaGJHY2lP{w20}",
        is_secret=is_token_in_parts,
    ),
    Rule(  # encrypted ones have five parts, of which only the first is an object
        "jwt",
        "eyJ",
        r"(?<![_-])eyJ[\w-]{10,1500}(?:\.[\w-]{10,1500}){4}(?![\w-])",
        "eyJhbGciOi{w20}.{w60}.{w16}.{w90}.{w22}",
        is_secret=is_token_in_parts,
    ),
    Rule(
        "url-password",
        "://",
        r"://[^\s:/?#@\"'<>]{0,200}:([^\s/?#@\"'<>]{3,200})@",
        "postgres://app:{w16}@db/x",
        "postgres://app:$DB_PASSWORD@db/x",
        is_secret=is_url_password,
        bounds=False,
    ),
    Rule(
        "authorization",
        spellings("authorization"),
        r"(?i:authorization)[\"'\\ \t]{0,4}(?:[:=,]|=>)[\"'\\ \t]{0,5}" + _SCHEME + r"([^\s\"'`\\,;<>()\[\]]{8,2000})",
        "Authorization: Bearer {w32}",
        "Authorization: Bearer <token-of-yours>",
        is_secret=is_credential,
        bounds=False,
    ),
    Rule(
        "authorization",
        spellings("bearer"),
        r"(?i:bearer)[ \t]{1,3}([\w.~+/-]{16,2000}={0,2})",
        "Bearer {w32}",
        "Bearer tokenauthentication",
        is_secret=has_random_digits,
    ),
    Rule(
        "curl-password",
        "-u --user",
        r"(?<=\s)(?:-u|--user)[ \t=]{0,9}[\"']?[^\s\"':]{0,100}[\"']?:[\"']?([^\s\"']{1,200})",
        "curl -u app:{w16} https://x",
        "docker run -u app:{w16} x",
        is_secret=is_password,
        after="curl",
        bounds=False,
    ),
    Rule(  # a key in place of the user's name
        "curl-password",
        "-u --user",
        r"(?<=\s)(?:-u|--user)[ \t=]{0,9}[\"']?([^\s\"':]{8,200}):[\"']?(?!\S)",
        "curl -u {w16}: https://x",
        "curl -u administrator: https://x",
        is_secret=is_user_key,
        after="curl",
        bounds=False,
    ),
    Rule(
        "header-secret",
        "-H --header",
        r"(?<=\s)(?:-H|--header)[ \t=]{0,9}[\"']?[\w-]{0,40}(?i:key|token|auth|secret|session|password)[\w-]{0,20}:"
        r"[ \t]{0,9}([^\s\"'`\\,;<>()\[\]]{8,2000})",
        "curl -H 'X-Service-Token: {w16}'",
        "curl -H 'X-Service-Token: $TOKEN_1'",
        is_secret=is_credential,
        after="curl",
        bounds=False,
    ),
    Rule(
        "netrc-password",
        "machine default",
        r"(?:machine[ \t]{1,9}\S{1,200}|default)\s{1,9}login\s{1,9}\S{1,100}\s{1,9}password\s{1,9}(\S{4,200})",
        "machine x login app password {w16}",
        "machine x login app password $DB_PASSWORD",
        is_secret=is_password,
    ),
    Rule(  # libpq's file of passwords: host, port, database, user
        "pgpass-password",
        ":5432:",
        r"(?<=[\w*.]):5432:[\w*.-]{1,63}:[\w*.-]{1,63}:(\S{4,200})",
        "db.example.com:5432:app:app:{w16}",
        "db.example.com:5432:app:app:$DB_PASSWORD",
        is_secret=is_password,
        bounds=False,
    ),
    Rule(
        "nuget-password",
        'key="',
        r"key=\"(?:ClearText)?Password\"\s{1,40}value=\"([^\"\s]{3,200})\"",
        '<add key="ClearTextPassword" value="{w16}" />',
        '<add key="ClearTextPassword" value="%PASSWORD%" />',
        is_secret=is_password,
        bounds=False,
    ),
    Rule(
        "discord-token",
        "",
        # The first part is a number in base64, so it begins with a digit's first six bits.
        r"\.(?:(?<=[MNO][\w-]{23}\.)|(?<=[MNO][\w-]{24}\.)|(?<=[MNO][\w-]{25}\.))[\w-]{6}\.[\w-]{27,38}(?![\w-])",
        "M{w23}.{w6}.{w27}",
        is_secret=is_discord,
        bounds=False,
    ),
    Rule(
        "sidekiq-password",
        "CONTRIBSYS__COM",
        r"CONTRIBSYS__COM" + GIVES + r"([\da-f]{8}:[\da-f]{8})",
        "BUNDLE_GEMS__CONTRIBSYS__COM={h8}:{h8}",
        is_secret=anything,
        bounds=False,
    ),
    Rule(
        "assigned-secret",
        " ".join(map(spellings, f"{_KEYS} {_PASSWORDS}".split())),
        _NAMES_ONLY + r"[A-Za-z]{3,10}[-_.]?(?i:key)?" + GIVES + _VALUE,
        "ACCESS_TOKEN={w20}",
        "token = get_token_from_settings",
        is_secret=is_assigned,
        bounds=False,
    ),
    Rule(
        "assigned-secret",
        spellings("auth"),
        _NAMES_ONLY + r"[A-Za-z]{4}(?![a-z])" + GIVES + _VALUE,
        "user_auth: {w20}",
        "authored-by = {w20}",
        is_secret=is_assigned,
        bounds=False,
    ),
    Rule(
        "assigned-password",
        " ".join(map(spellings, _PASSWORDS.split())),
        _NAMES_ONLY + r"[A-Za-z]{3,10}" + GIVES + r"(?<=[\"'])([^\s\"'`]{8,60})(?=[\"'])",
        "'db_password' => '{w12}'",
        "password_url = 'https://a1.example.org/x'",
        is_secret=is_quoted_password,
        bounds=False,
    ),
    Rule(  # as files of settings have it
        "assigned-password",
        "PASS PWD",
        r"(?:PASS(?:WORD|WD|PHRASE)?|PWD)=[\"']?([^\s\"'`]{6,60})",
        "DB_PASSWORD={l8}",
        "OLDPWD=/home/alice",
        is_secret=is_password_setting,
        bounds=False,
    ),
)
