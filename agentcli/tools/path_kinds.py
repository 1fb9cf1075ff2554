"""What kind of place a path names, told from the path alone: a secret, a file that makes programs run, or a disguise.

Nothing here looks at a disk. Who opens the file resolves its links and has the real path judged as well. Names are
compared as the most forgiving file systems do (NTFS, APFS): without case, in NFKC, without what shows nothing, without
dots and spaces at the end, and by short names such as `GIT~1`.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Literal
from urllib.parse import unquote

PathKind = Literal["plain", "outside", "secret", "protected", "odd"]

LONGEST_PATH = 4_096  # bytes, Linux's PATH_MAX
LONGEST_NAME = 255  # bytes, what ext4, APFS and NTFS allow
DEEPEST = 256  # parts; a tree of people's is seldom twenty deep

# Files and folders below a home that hold secrets: what a sandbox hides. A question mark stands for a space.
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
# Of these only what lies in a home is secret: projects have files of the same name that everybody may read.
_ONLY_AT_HOME = frozenset(
    """
    .npmrc .yarnrc.yml .bundle/config .gradle/gradle.properties .m2/settings.xml .fly .pki .terraformrc
    .nuget/NuGet/NuGet.Config .agentcli/config.toml .agentcli/state
    """.split()
)

_OF_PROCESSES = frozenset(("environ", "mem", "kcore"))  # in /proc: what programs hold, keys among it

_ANYWHERE = tuple(path for path in SECRET_HOME_PATHS if path not in _ONLY_AT_HOME)

# Names of secret files anywhere, as ripgrep and fnmatch read them, without case; the exceptions win.
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

# What a workspace may hold that programs run or obey by themselves. Who edits one asks first.
PROTECTED_FOLDERS = tuple(
    """
    .git .hg .svn .agentcli .vscode .idea .zed .fleet .cursor .windsurf .claude .codex .gemini .opencode .kiro .roo
    .continue .junie .amazonq .husky .direnv .ssh .gnupg
    """.split()
)
# Of these a change is to be seen, no more: they belong to a project as its build files do, `git checkout` writes them,
# and what they name runs only once the person commits, or allows it.
REVIEWED_FILES = tuple(
    """
    .gitattributes .envrc .pre-commit-config.yaml .pre-commit-config.yml .lefthook.yml lefthook.yml .overcommit.yml
    """.split()
)
PROTECTED_FILES = REVIEWED_FILES + tuple(
    """
    .gitconfig .mcp.json .claude.json .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc
    .zshenv .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .inputrc .xprofile .xinitrc .xsession .xsessionrc
    .tmux.conf .screenrc .vimrc .gvimrc .exrc .nvimrc .nvim.lua .emacs .dir-locals.el .gdbinit .lldbinit .pdbrc .irbrc
    .curlrc .wgetrc .hgrc
    """.split()
)
PROTECTED_NAMES = PROTECTED_FOLDERS + PROTECTED_FILES
# In a sandbox these cannot be written, nor made; of `.git` that is what git runs and obeys: commits write the rest.
READ_ONLY_NAMES = tuple(name for name in PROTECTED_NAMES if name not in REVIEWED_FILES)
# Below any repository's own folder.
PROTECTED_GIT_PATHS = ("hooks", "config", "config.worktree", "info", "modules", "worktrees")
# Below a home: what starts with the machine, the session or a program used every day.
PROTECTED_HOME_PATHS = tuple(
    """
    .config/fish .config/autostart .config/systemd .config/environment.d .config/git .config/nvim .vim .emacs.d
    .local/bin .local/lib .local/share/systemd .local/share/agentcli .cargo/bin .cargo/env .nvm Library/LaunchAgents
    """.split()
)


def judge_path(
    path: str, *, access: Literal["read", "write"], cwd: Path, roots: Sequence[Path], home: Path | None
) -> PathKind:
    """The most serious thing to be said of `path` as a tool was given it; `cwd`, `roots` and `home` are absolute.

    odd: not what it seems, or no file. secret: likely to hold keys. protected (writes only): makes programs run.
    outside: in none of the roots. Everything but plain is for a person to decide.
    """
    # The name of a workspace was chosen by its owner: only what is below it is looked at.
    below = next((path[len(str(root)) + 1 :] for root in roots if f"{path}/".startswith(f"{root}/")), path)
    if (below or not path) and is_odd(below):
        return "odd"
    if home is not None and (path == "~" or path.startswith("~/")):
        path = f"{home}{path[1:]}"
    full = PurePath(posixpath.normpath(posixpath.join(cwd, path)))
    root = next((root for root in roots if full.is_relative_to(root)), None)
    if is_secret(full, home):
        return "secret"
    # Temporary folders in /dev/shm are worked in like any other, once somebody chose one.
    if (is_special(PurePath(path)) or is_special(full)) and not (root and is_special(root)):
        return "odd"
    # Above a workspace its owner chose the names: `~/.claude/worktrees/x` is as good a place to work in as any.
    if access == "write" and is_protected(full if root is None else full.relative_to(root)):
        return "protected"
    return "outside" if root is None else "plain"


def is_odd(path: str) -> bool:
    """Whether `path` is a disguise, an address, a device of Windows, or longer than a file system takes."""
    raw = path.encode("utf-8", "surrogatepass")
    if not path or len(raw) > LONGEST_PATH or path.count("/") > DEEPEST or _HIDDEN.search(path):
        return True
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if any(len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME for part in parts):
        return True
    if _FOREIGN.match(path) or (len(parts) > 1 and any(_DOTS.fullmatch(part) for part in parts)):
        return True
    if any(_SPACED_DOTS.fullmatch(part) for part in parts):
        return True
    if parts and _DEVICE.fullmatch(parts[-1]):
        return True
    return any(_leads_elsewhere(path, other) for other in _readings(path))


# Controls, and characters that turn text around or show nothing; a joiner belongs to the writing of some languages.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# UNC and device paths, drives, URLs; homes of others and variables, which a shell would look up and we do not.
_FOREIGN = re.compile(
    r"\\\\|//[?.]/|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]*://|(?i:file|data|javascript):|~[^/]|\$\w+/|\$\{\w+\}|%\w+%"
)
_DOTS = re.compile(r"\.{3,}")
_SPACED_DOTS = re.compile(r"[. ]*(?:\. | \.)[. ]*")  # for Windows this is `.` or `..`
_DEVICE = re.compile(r"(?i:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$|clock\$)[ .:]*")


def _readings(path: str) -> Iterable[str]:
    """What others may read in `path`: percent signs decoded (twice, as some do), look-alikes folded, backslashes."""
    decoded = unquote(path)
    folded = unicodedata.normalize("NFKC", path)
    return (decoded, unquote(decoded), folded, unquote(folded), path.replace("\\", "/"))


def _leads_elsewhere(path: str, other: str) -> bool:
    """Whether `other` has parents or folders that `path` does not."""
    return other != path and (_steps(other) != _steps(path) or _HIDDEN.search(other) is not None)


def _steps(path: str) -> tuple[int, int]:
    parts = path.split("/")
    return len(parts), sum(part.strip() == ".." for part in parts)


def is_special(path: PurePath) -> bool:
    """Whether `path` lies where the kernel shows itself: what is there is no file, and some of it never ends."""
    parts = path.parts
    return len(parts) > 1 and parts[0].startswith("/") and parts[1].casefold() in ("proc", "dev", "sys")


@lru_cache(4_096)
def is_secret(path: PurePath, home: PurePath | None) -> bool:
    """Whether `path` is named as files are that hold keys, or lies in a folder of such."""
    parts = _folded(path)
    if not parts or parts[-1].endswith(".pub"):
        return False
    if _matches(SECRET_GLOBS, parts[-1]) and not _matches(SECRET_GLOB_EXCEPTIONS, parts[-1]):
        return True
    if _is_short_for(parts[-1], SECRET_GLOBS):
        return True
    if parts[:2] == ("/", "proc") and parts[-1] in _OF_PROCESSES:
        return True
    if parts[:3] == ("/", "run", "secrets") or parts[:4] == ("/", "var", "run", "secrets"):
        return True
    if _holds(_ANYWHERE, parts, starts=range(len(parts))):
        return True
    depth = len(home.parts) if home is not None and path.is_relative_to(home) else len(parts)
    return depth < len(parts) and _holds(SECRET_HOME_PATHS, parts, starts=(depth,))


def is_protected(path: PurePath) -> bool:
    """Whether writing to `path`, given from the workspace on, would have programs run or obey something new."""
    parts = _folded(path)
    for position, part in enumerate(parts):
        if part in PROTECTED_NAMES or _is_short_for(part, PROTECTED_NAMES):
            return True
        # A repository without a work tree has its hooks in a folder of any name, by custom `name.git`.
        if part.endswith(".git") and parts[position + 1 : position + 2] and parts[position + 1] in PROTECTED_GIT_PATHS:
            return True
    return _holds(PROTECTED_HOME_PATHS, parts, starts=range(len(parts)))


def is_reviewed(path: PurePath) -> bool:
    """Whether `path`, given from the workspace on, is protected for no more than being one of `REVIEWED_FILES`."""
    return fold_name(path.name) in REVIEWED_FILES and not is_protected(path.parent)


def _folded(path: PurePath) -> tuple[str, ...]:
    return tuple(map(fold_name, path.parts))


@lru_cache(4_096)
def fold_name(name: str) -> str:
    """`name` as the most forgiving file systems compare it."""
    name = unicodedata.normalize("NFKC", name)
    name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf").casefold()
    # What follows a colon is a stream of the file on NTFS.
    return name.partition(":")[0].rstrip(". ") or name


def _is_short_for(name: str, names: Sequence[str]) -> bool:
    """Whether `name` is what Windows may call one of `names` for old programs: six letters and a number."""
    match = re.fullmatch(r"([^~.]{1,6})~\d{1,4}(?:\.[^.]{0,3})?", name)
    return match is not None and match[1] in _stems(tuple(names))


@lru_cache
def _stems(names: tuple[str, ...]) -> frozenset[str]:
    hidden = (name.lstrip(".") for name in names if name.startswith(".") and "*" not in name)
    return frozenset(re.sub(r"[ .]", "", name.rpartition(".")[0] or name)[:6] for name in hidden)


def _holds(paths: tuple[str, ...], parts: tuple[str, ...], *, starts: Iterable[int]) -> bool:
    """Whether one of `paths`, or something below it, begins at one of the places in `parts`."""
    by_first_part = _by_first_part(paths)
    return any(
        parts[start : start + len(path)] == path for start in starts for path in by_first_part.get(parts[start], ())
    )


@lru_cache
def _by_first_part(paths: tuple[str, ...]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        folded = tuple(map(fold_name, path.split("/")))
        found.setdefault(folded[0], []).append(folded)
    return found


def _matches(globs: tuple[str, ...], name: str) -> bool:
    return _expression(globs).match(name) is not None


@lru_cache
def _expression(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))
