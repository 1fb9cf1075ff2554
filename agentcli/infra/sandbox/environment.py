"""Builds the environment of commands: variables that programs need, paths of caches, never a credential."""

import re
from collections.abc import Collection, Mapping

from agentcli.patterns import lazy_pattern

# All other variables are removed: those that run code in every shell or program (BASH_ENV, ENV, LD_PRELOAD,
# PROMPT_COMMAND, BASH_FUNC_*, PYTHONSTARTUP), that control git, or that name other programs' sockets (SSH_AUTH_SOCK).
_NAMES = frozenset(
    """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TZDIR TMPDIR TMP TEMP HOSTNAME MANPATH INFOPATH CI WSL_DISTRO_NAME
    NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE DISPLAY WAYLAND_DISPLAY SOURCE_DATE_EPOCH
    http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE AWS_CA_BUNDLE
    VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONIOENCODING PYTHONUTF8
    PYTHONHASHSEED PYTHONWARNINGS PYTHONPYCACHEPREFIX PYTHONBREAKPOINT PYTEST_ADDOPTS DJANGO_SETTINGS_MODULE
    JAVA_HOME JDK_HOME JRE_HOME JAVA_OPTS JAVA_TOOL_OPTIONS M2_HOME MAVEN_HOME MAVEN_OPTS ANT_HOME KOTLIN_HOME
    SCALA_HOME SBT_OPTS GRADLE_HOME GRADLE_OPTS GRADLE_USER_HOME ANDROID_HOME ANDROID_SDK_ROOT ANDROID_NDK_HOME
    GOPATH GOROOT GOBIN GOCACHE GOMODCACHE GOFLAGS GOPROXY GOSUMDB GONOSUMDB GONOPROXY GOPRIVATE GOTOOLCHAIN GOOS
    GOARCH GOARM GOAMD64 GOWORK GO111MODULE GOMAXPROCS
    CC CXX CPP LD AR AS NM RANLIB STRIP OBJCOPY FC CFLAGS CXXFLAGS CPPFLAGS LDFLAGS LDLIBS FFLAGS ASFLAGS MAKEFLAGS
    CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH LD_LIBRARY_PATH DYLD_LIBRARY_PATH NINJA_STATUS SDKROOT
    GEM_HOME GEM_PATH RUBYLIB RUBYOPT RAILS_ENV RACK_ENV MIX_ENV COMPOSER_HOME PERL5LIB
    PNPM_HOME BUN_INSTALL DENO_DIR DENO_INSTALL SDKMAN_DIR DEVELOPER_DIR CHROME_BIN TORCH_HOME HF_HOME
    """.split()
)
_PREFIXES = (
    "LC_", "XDG_", "GIT_AUTHOR_", "GIT_COMMITTER_", "CONDA_", "MAMBA_", "PYENV_", "UV_", "PIP_", "PIPX_", "POETRY_",
    "PDM_", "HATCH_", "NVM_", "NODE_", "NPM_CONFIG_", "npm_config_", "VOLTA_", "FNM_", "YARN_", "COREPACK_", "CARGO_",
    "RUST", "CGO_", "RBENV_", "BUNDLE_", "PKG_CONFIG", "CMAKE_", "CCACHE_", "SCCACHE_", "CUDA_", "NVIDIA_", "ROCM_",
    "HIP_", "OMP_", "MKL_", "OPENBLAS_", "DOTNET_", "NIX_", "HOMEBREW_", "ASDF_", "MISE_", "FLASK_", "PLAYWRIGHT_",
    "PUPPETEER_",
)  # fmt: skip

# Even when it only reads, git can start programs that a repository names: one in a bare repository within a working
# copy, which anybody can commit, or a file system monitor (git-config(1): safe.bareRepository, core.fsmonitor).
_GIT_SETTINGS = {
    "safe.bareRepository": "explicit",
    "core.fsmonitor": "false",
    # The cover over a secret file has only its size and its time: see confinement.py.
    "core.checkStat": "minimal",
    "core.trustctime": "false",
}

PRIVATE_TMP = "/tmp"  # noqa: S108  # each command has its own

# A variable -> the subfolder for the tool's cache while HOME is read-only. Only tools that cannot run without writing
# are listed: Cargo and Maven work with a read-only cache. XDG_CACHE_HOME is not changed, so that browsers, models and
# environments that were downloaded earlier can still be read.
_CACHES = {
    "PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv", "npm_config_cache": "npm", "YARN_CACHE_FOLDER": "yarn",
    "BUN_INSTALL_CACHE_DIR": "bun", "DENO_DIR": "deno", "GOCACHE": "go-build", "GOLANGCI_LINT_CACHE": "golangci-lint",
    "CCACHE_DIR": "ccache", "SCCACHE_DIR": "sccache", "NUMBA_CACHE_DIR": "numba", "MPLCONFIGDIR": "matplotlib",
}  # fmt: skip

# Without these, package managers retry for minutes although no host can be reached.
WITHOUT_NETWORK = {"npm_config_fetch_retries": "0", "PIP_RETRIES": "0", "CARGO_NET_RETRY": "0"}

_SECRET_NAME = lazy_pattern(
    r"(^|_)(API_?KEY|ACCESS_?KEY|SECRET|PRIVATE_?KEY|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PW|PAT)(_|\d*$)"
    r"|authToken|_auth$|PGPASSWORD|ANTHROPIC_CUSTOM_HEADERS|OTLP_(\w+_)?HEADERS|OBSERVABILITY_HEADERS",
    re.IGNORECASE,
)
# Keys of providers by their form, private keys, and URLs with a password.
_SECRET_VALUE = lazy_pattern(
    r"\bsk-[\w-]{16,}|\b(sk|rk|pk)_(live|test)_\w{10,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bxox[abeoprs]-[\w-]{10,}|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}|\bya29\.[\w-]{20,}|\bhf_\w{20,}"
    r"|\bnpm_\w{30,}|\bpypi-[\w-]{30,}|\btvly-[\w-]{16,}|\bgsk_\w{20,}|\bxai-\w{20,}|\bnvapi-[\w-]{20,}|\br8_\w{20,}"
    r"|\bdop_v1_\w{20,}|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bdckr_pat_[\w-]{16,}|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]*:[^/\s@]+@"
)


def command_environment(
    environment: Mapping[str, str], session_id: str, *, allowed: Collection[str] = ()
) -> dict[str, str]:
    """Return the variables for a command: the safe ones, those in `allowed`, and our own."""
    selected = {
        name: value
        for name, value in environment.items()
        if name in allowed
        or (
            (name in _NAMES or name.startswith(_PREFIXES))
            and not _SECRET_NAME.search(name)
            and not _SECRET_VALUE.search(value)
        )
    }
    git_settings = list(enumerate(_GIT_SETTINGS.items()))
    return selected | {  # so that no program waits for a person, or is started by git because a repository names it
        **dict.fromkeys(("PAGER", "GIT_PAGER", "MANPAGER"), "cat"),
        **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR"), "true"),
        "AGENTCLI": "1",
        "TERM": "dumb",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS)),
        **{f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in git_settings},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in git_settings},
        **({"AGENTCLI_SESSION_ID": session_id} if session_id else {}),
    }


def cache_environment(folder: str) -> dict[str, str]:
    """Return the variables that put caches below `folder`, and temporary files into the private /tmp."""
    return {"TMPDIR": PRIVATE_TMP} | {name: f"{folder}/{tool}" for name, tool in _CACHES.items()}


def credentials_in(environment: Mapping[str, str]) -> list[str]:
    """Return the values that look like credentials by name or format, for masking."""
    values = {name: value.strip() for name, value in environment.items()}
    return [
        value
        for name, value in values.items()
        if value and (_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)) and value[0] != "/"  # no path to a key
    ]
