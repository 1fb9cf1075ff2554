#!/bin/sh
# Installs agentcli into a dev container, as root while its image is built; VERSION and EXTRAS are the feature's options.
set -eu

prefix=${AGENTCLI_PREFIX:-/usr/local/share/agentcli}
bin=${AGENTCLI_BIN:-/usr/local/bin}

fail() { printf 'agentcli: %s\n' "$*" >&2; exit 1; }

[ -n "${VERSION:-}" ] || fail 'set the option "version" to what pip can install, such as the address of a wheel.'

missing=
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap" # confines commands
command -v git >/dev/null 2>&1 || missing="$missing git"
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3 python3-venv"
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null 2>&1 || fail "install these first, as Debian names them:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
    rm -rf /var/lib/apt/lists/*
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail 'it needs Python 3.11 or newer: add the feature ghcr.io/devcontainers/features/python.'

requirement=$VERSION
if [ -n "${EXTRAS:-}" ]; then
    case $VERSION in
        *' @ '*) requirement="agentcli[$EXTRAS] @ ${VERSION#* @ }" ;;
        *) requirement="${VERSION}[$EXTRAS]" ;;
    esac
fi
python3 -m venv --clear "$prefix/venv"
"$prefix/venv/bin/pip" install --quiet --disable-pip-version-check "$requirement"
mkdir -p "$bin"
ln -sf "$prefix/venv/bin/agentcli" "$bin/agentcli"
printf 'Installed %s\n' "$("$bin/agentcli" --version)"
