"""Secrets that only their place gives away: in headers, URLs, command lines, assignments; and tokens in parts.

Passwords have no format, so these rules go by the name before a value and by what `values` says of it.
"""

from __future__ import annotations

from agentcli.safety.secrets.named import GIVES, spellings
from agentcli.safety.secrets.rule import Rule, anything, has_random_digits
from agentcli.safety.secrets.values import (
    is_assigned,
    is_bare_password,
    is_cookie,
    is_credential,
    is_discord,
    is_lone_word,
    is_password,
    is_password_argument,
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
# A look ahead gives nothing back, so a value that turns out to be the name of a function is not tried again without
# its last letter.
_VALUE = (
    r"(?=((?<=[\"'`])[^\s\"'`]{8,2000}(?=[\"'`])|"
    r"[^\s\"'`,;&=()\[\]{}<>\\]{8,200}[\w+/.-]{0,2000}={0,2}))\1(?![(\[])"
)
# What stands between a password's name and the password, and one without quotes; in addresses `&` ends it.
_IS = r"[\w.-]{0,24}[\"'\]]{0,2}[ \t]{0,4}(?:=>|:=|[=:]|>(?=[^<>\s]{6,80}</))[ \t]{0,4}\\{0,3}[\"']?"
_BARE = r"(?=((?:&(?![\w.-]{1,40}=)|[^\s\"'`;,&<>(){}\[\]|\\=]){6,80}))\1(?![(\[{])"
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
        r"://[^\s:/?#@\"'<>]{0,200}:([^\s/?#\"'<>]{3,200})@",
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
        r"(?<=\s)(?:-u|--user)[ \t=]{0,9}\\{0,3}[\"']?[^\s\"':\\]{0,100}\\{0,3}[\"']?:\\{0,3}[\"']?([^\s\"'\\]{1,200})",
        "curl -u app:{w16} https://x",
        "docker run -u app:{w16} x",
        is_secret=is_password,
        after="curl",
        bounds=False,
    ),
    Rule(  # a key in place of the user's name
        "curl-password",
        "-u --user",
        r"(?<=\s)(?:-u|--user)[ \t=]{0,9}\\{0,3}[\"']?([^\s\"':\\]{8,200}):\\{0,3}[\"']?(?!\S)",
        "curl -u {w16}: https://x",
        "curl -u administrator: https://x",
        is_secret=is_user_key,
        after="curl",
        bounds=False,
    ),
    Rule(
        "header-secret",
        "-H --header",
        r"(?<=\s)(?:-H|--header)[ \t=]{0,9}\\{0,3}[\"']?[\w-]{0,40}(?i:key|token|auth|secret|session|password)"
        r"[\w-]{0,20}:[ \t]{0,9}([^\s\"'`\\,;<>()\[\]]{8,2000})",
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
        r"[A-Za-z]{3,10}[-_.]?(?i:key)?" + GIVES + _VALUE,
        "ACCESS_TOKEN={w20}",
        "token = get_token_from_settings",
        is_secret=is_assigned,
        bounds=False,
        is_named=True,
    ),
    Rule(
        "assigned-secret",
        spellings("auth"),
        r"[A-Za-z]{4}(?![a-z])" + GIVES + _VALUE,
        "user_auth: {w20}",
        "authored-by = {w20}",
        is_secret=is_assigned,
        bounds=False,
        is_named=True,
    ),
    Rule(
        "assigned-password",
        " ".join(map(spellings, _PASSWORDS.split())),
        r"[A-Za-z]{3,10}" + GIVES + r"(?<=[\"'])([^\s\"'`]{8,60})(?=[\"'])",
        "'db_password' => '{w12}'",
        "password_url = 'https://a1.example.org/x'",
        is_secret=is_quoted_password,
        bounds=False,
        is_named=True,
    ),
    Rule(  # short, or without quotes
        "assigned-password",
        " ".join(map(spellings, _PASSWORDS.split())),
        r"[A-Za-z]{3,10}" + _IS + _BARE,
        "passwd: {w12}",
        "password: bcrypt.hash_2(x)",
        is_secret=is_bare_password,
        bounds=False,
        is_named=True,
    ),
    Rule(  # alone on its line
        "lone-password",
        "password= passwd= pwd= Password=",
        r"[Pp]\w{2,7}=([A-Za-z]{8,40})(?=[ \t]{0,3}(?:[\r\n]|\Z))",
        "db.password=correcthorse",
        "password=newPassword",
        is_secret=is_lone_word,
        bounds=False,
    ),
    Rule(  # in connection strings, as ADO, ODBC and JDBC have them
        "connection-password",
        "assword= wd= ASSWORD= WD=",
        r"(?:(?<=[;?&][Pp])|(?<=[;?&] [Pp])|(?<=;P)|(?<=; P))(?i:assword|wd)=([^\s\"'`;&<>(){}]{3,100})",
        "Server=db;User Id=app;Password={l12};",
        "Server=db;User Id=app;Password=$PASSWORD;",
        is_secret=is_password,
        bounds=False,
    ),
    Rule(  # and as libpq has them; arguments of a function have commas between them
        "connection-password",
        "password=",
        r"(?<=[^\s,(;] )password=[\"']?([^\s\"'`,()\[\]{}]{3,100})(?![\w(\[])",
        "host=db user=app password={l12} dbname=x",
        "host=db user=app password=$PASSWORD dbname=x",
        is_secret=is_password,
        after="host=",
        bounds=False,
    ),
    Rule(
        "argument-password",
        "-password -passwd -passphrase -pass",
        r"(?:(?<=-)|(?<=--\w{2})|(?<=--\w{3})|(?<=--\w{4})|(?<=--\w{5})|(?<=--\w{6}))"
        r"-pass(?:word|wd|phrase)?[ \t]{1,3}[\"']?([^\s\"'`,;|<>(){}\[\]]{6,80})",
        "--password {w12}",
        "--password username",
        is_secret=is_bare_password,
        bounds=False,
    ),
    Rule(
        "argument-password",
        "-p",
        r"(?<=\s)-p[\"']?([^\s\"'-][^\s\"']{3,80})",
        "mysql -u root -p{w12} shop",
        "mysql -u root -p shop",
        is_secret=is_password_argument,
        after="mysql",
        bounds=False,
    ),
    Rule(
        "argument-password",
        "-p",
        r"(?<=\s)-p[ \t]{0,3}[\"']?([^\s\"']{4,80})",
        "sshpass -p {w12} ssh x",
        "sshpass -p $PASSWORD ssh x",
        is_secret=is_password_argument,
        after="sshpass",
        bounds=False,
    ),
    Rule(
        "argument-password",
        "-a",
        r"(?<=\s)-a[ \t]{0,3}[\"']?([^\s\"']{4,80})",
        "redis-cli -a {w12} ping",
        "redis-cli -a $PASSWORD ping",
        is_secret=is_password_argument,
        after="redis-cli",
        bounds=False,
    ),
    Rule(
        "cookie",
        "ookie: ookie= ookie' ookie\" --cookie",
        r"(?:-?-?c)?ookies?[\"'\\]{0,3}[ \t]{0,3}(?:[:=,]|(?<=--cookie))[ \t\"'\\]{0,4}",
        "Set-Cookie: sid={w32}; Path=/; HttpOnly",
        "Set-Cookie: theme=dark; Path=/; Max-Age=31536000",
        is_secret=is_cookie,
        bounds=False,
        each=r"=[\"]?([^\s;,\"'\\]{10,4000})",
    ),
    Rule(
        "cookie",
        "-b",
        r"(?<=\s)-b[ \t]{0,3}[\"']?",
        "curl -b 'sid={w32}' https://x",
        "curl -b cookies.txt https://x",
        is_secret=is_cookie,
        after="curl",
        bounds=False,
        each=r"=[\"]?([^\s;,\"'\\]{10,4000})",
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
