"""Recognizes files that hold secrets, by their names and by the folders they lie in."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from pathlib import PurePath

from agentcli.safety.paths.folding import folded_parts, holds, is_below, is_short_for

# Files and folders of a home that hold secrets; the sandbox hides them. A question mark stands for a space.
SECRET_HOME_PATHS = tuple(
    path.replace("?", " ")
    for path in """
    .ssh .gnupg .aws .azure .kube .oci .fly .password-store .vault-token .boto .s3cfg .databrickscfg .snowsql .pki
    .docker/config.json .dockercfg .config/containers/auth.json .config/gcloud .config/gh .config/glab-cli .config/hub
    .config/op .config/doctl .config/hcloud .config/rclone .config/sops .config/github-copilot .config/huggingface
    .cache/huggingface/token .huggingface/token .kaggle/kaggle.json .terraform.d/credentials.tfrc.json .terraformrc
    .netrc _netrc .pgpass .my.cnf .mylogin.cnf .git-credentials .config/git/credentials .npmrc .yarnrc.yml .pypirc
    .cargo/credentials .cargo/credentials.toml .gem/credentials .bundle/config .composer/auth.json .m2/settings.xml
    .gradle/gradle.properties .ivy2/.credentials .sbt/.credentials .nuget/NuGet/NuGet.Config .subversion/auth
    .claude.json .claude/.credentials.json .codex/auth.json .gemini/oauth_creds.json .local/share/opencode/auth.json
    .agentcli/config.toml .agentcli/credentials.json .agentcli/state .config/agentcli/config.toml
    .config/agentcli/credentials.json .local/state/agentcli .local/share/keyrings .local/share/kwalletd
    .mozilla .thunderbird .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge
    .bitcoin .electrum .ethereum .config/filezilla .bash_history .zsh_history .psql_history .mysql_history
    .python_history .node_repl_history .sqlite_history .rediscli_history
    Library/Keychains Library/Cookies Library/Application?Support/Google/Chrome
    Library/Application?Support/Firefox Library/Application?Support/agentcli
    AppData/Roaming/Mozilla AppData/Local/Google/Chrome AppData/Roaming/Microsoft/Credentials AppData/Local/agentcli
    """.split()
)
# Secret in a home only: projects have public files of the same names.
_ONLY_AT_HOME = frozenset(
    """
    .npmrc .yarnrc.yml .bundle/config .gradle/gradle.properties .m2/settings.xml .fly .pki .terraformrc
    .nuget/NuGet/NuGet.Config .agentcli/config.toml .agentcli/state
    """.split()
)

_ANYWHERE = tuple(path for path in SECRET_HOME_PATHS if path not in _ONLY_AT_HOME)
_PROCESS_FILES = frozenset(("environ", "mem", "kcore"))  # in /proc: the memory and environment of programs

# Names of secret files in any folder: globs for ripgrep and fnmatch, matched without case. The exceptions win.
SECRET_GLOBS = tuple(
    """
    .env .env.* .env-* .env_* *.env id_rsa* id_dsa* id_ecdsa* id_ed25519* id_xmss* ssh_host_*_key
    *.pem *.key *.p12 *.pfx *.p8 *.pkcs12 *.jks *.keystore *.ppk *.kdb *.kdbx *.keychain *.keychain-db *.ovpn
    .netrc _netrc .pgpass pgpass.conf .my.cnf .mylogin.cnf .git-credentials .htpasswd .htdigest .pypirc .dockercfg
    .vault-token .vault_pass* .vault-pass* .s3cfg .boto .passwd-s3fs .databrickscfg .secrets wallet.dat secring.*
    credentials credentials.json credentials.toml credentials.ini credentials.csv credentials.xml credentials.y*ml
    credentials.db credentials.tfrc.json client_secret*.json service[-_]account*.json
    application_default_credentials.json secrets.y*ml secrets.json secrets.toml secrets.ini .credentials
    .credentials.json kubeconfig *.kubeconfig *.tfstate *.tfstate.backup shadow shadow- gshadow gshadow- master.passwd
    """.split()
)
SECRET_GLOB_EXCEPTIONS = tuple(
    """
    *.pub .env*example* .env*sample* .env*template* .env*.tpl .env*.dist .env*.default .env*.defaults .env*.schema
    example*.env sample*.env template*.env *.example *.sample *.template *.md *.rst *.html *.py *.js *.ts *.go *.rs
    *.java *.rb cacert.pem ca.pem cert.pem chain.pem fullchain.pem *bundle*.pem *public*.pem *pub.pem *public.key
    """.split()
)


@lru_cache(4_096)
def is_secret(path: PurePath, home: PurePath | None) -> bool:
    """True if the name of `path` is one that key files have, or if it lies in a folder of secrets."""
    parts = folded_parts(path)
    if not parts or parts[-1].endswith(".pub"):
        return False
    if _matches(SECRET_GLOBS, parts[-1]) and not _matches(SECRET_GLOB_EXCEPTIONS, parts[-1]):
        return True
    if is_short_for(parts[-1], SECRET_GLOBS):
        return True
    if parts[:2] == ("/", "proc") and parts[-1] in _PROCESS_FILES:
        return True
    if parts[:3] == ("/", "run", "secrets") or parts[:4] == ("/", "var", "run", "secrets"):
        return True
    if holds(_ANYWHERE, parts, starts=range(len(parts))):
        return True
    depth = len(home.parts) if home is not None and is_below(path, home) else len(parts)
    return depth < len(parts) and holds(SECRET_HOME_PATHS, parts, starts=(depth,))


def _matches(globs: tuple[str, ...], name: str) -> bool:
    return _expression(globs).match(name) is not None


@lru_cache
def _expression(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))
