#!/bin/sh
# Installs agentcli into a virtual environment of its own, tries it, tests it, or takes it away again.
set -eu

usage() {
    cat <<'TEXT'
Usage: ./install.sh [VERB] [--extras NAMES] [--uninstall] [-- ARGUMENTS FOR PYTEST]

  (none)          install agentcli and put it on the PATH; safe to run again
  try             install it with a small model that runs on this machine (about 1.2 GB the first time),
                  and let that model answer a question and make a change in a sample repository
  test            install what the tests need (in .venv here) and run them

  --extras NAMES  further parts, separated by commas (local, cloud, mcp, server, postgres, redis, otel, langchain, inspect, ray)
  --uninstall     remove the program; sessions and settings stay

Places: AGENTCLI_PREFIX (default ~/.local/share/agentcli), AGENTCLI_BIN (default ~/.local/bin).
TEXT
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=${AGENTCLI_PREFIX:-$HOME/.local/share/agentcli}
bin=${AGENTCLI_BIN:-$HOME/.local/bin}
verb=install
extras=

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
        try | test) verb=$1 ;;
        --extras) [ $# -gt 1 ] || fail "--extras needs names, such as --extras local"; extras=$2; shift ;;
        --extras=*) extras=${1#--extras=} ;;
        --uninstall) verb=uninstall ;;
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        *) usage >&2; fail "there is no $1" ;;
    esac
    shift
done

find_python() {
    for name in python3.13 python3.12 python3.11 python3 python; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is missing: install it first (on Debian and Ubuntu: apt-get install python3 python3-venv)"
}

# Prints the system packages that are missing, as Debian names them. bubblewrap confines commands, libgomp1 is what the
# embedded model's engine computes with; Debian keeps the part of Python that makes virtual environments apart.
missing_packages() {
    if [ "$(uname -s)" != Linux ]; then
        return
    fi
    command -v bwrap >/dev/null 2>&1 || printf ' bubblewrap'
    command -v git >/dev/null 2>&1 || printf ' git'
    [ "$verb" != test ] || command -v ps >/dev/null 2>&1 || printf ' procps'
    if ! command -v uv >/dev/null 2>&1 && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        printf ' python%s-venv' "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    fi
    case ",$extras," in
        *,local,*)
            "$python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || printf ' libgomp1'
            ;;
    esac
}

# Installs them as root, or by sudo if that is wanted; else names the command and goes on without, as most works.
add_packages() {
    wanted=$(missing_packages)
    [ -n "$wanted" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        say "These system packages are missing, as Debian names them; install what your system calls them:$wanted"
    elif [ "$(id -u)" = 0 ]; then
        say "Installing these system packages:$wanted"
        if install_packages; then return 0; fi
        say "They could not be installed; to do so by hand:  apt-get install$wanted"
    elif accepts "These system packages are missing:$wanted. Install them with sudo apt-get?"; then
        if install_packages sudo; then return 0; fi
        say "They could not be installed; to do so by hand:  sudo apt-get install$wanted"
    else
        say "These system packages are missing; to install them:  sudo apt-get install$wanted"
    fi
    case $wanted in
        *bubblewrap*)
            say "Without bubblewrap Landlock holds commands, which is weaker: no host can be opened to them, they share"
            say "/tmp, those that write can read secret files (you are asked first), changed hooks are reverted only"
            say "afterwards, and nothing is tried first: commands ask before they run. Without Landlock every one asks."
            ;;
    esac
    case $wanted in
        *git*) say "Without git: no commits, /diff or /review, and no report of what commands did to a repository." ;;
    esac
}

install_packages() { # sudo, or nothing
    ${1:+"$1"} apt-get update -qq >/dev/null 2>&1 || true # an old list may do
    # shellcheck disable=SC2086
    ${1:+"$1"} env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $wanted >/dev/null 2>&1
}

accepts() { # question
    if ! [ -t 0 ] || ! command -v sudo >/dev/null 2>&1; then return 1; fi
    printf '%s [y/N] ' "$1"
    read -r answer
    case $answer in [yY]*) ;; *) return 1 ;; esac
}

make_venv() { # folder
    if [ -x "$1/bin/python" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    mkdir -p "$(dirname "$1")"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --seed --clear --python "$python" "$1" # with pip: the embedded model is fetched through it
    elif ! "$python" -m venv --clear "$1" >/dev/null 2>&1; then
        fail "$python could not make a virtual environment in $1 (on Debian and Ubuntu it needs its -venv package)"
    fi
}

install_into() { # folder, what to install (pip's arguments)
    folder=$1
    shift
    unset PYTHONDONTWRITEBYTECODE # every start would read the source again, at two to five times the cost
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --compile-bytecode --reinstall-package agentcli --python "$folder/bin/python" "$@"
    else
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
    fi
    # On all cores, which pip does not use. Foreign test files may not compile.
    "$folder/bin/python" -m compileall -q -j 0 "$folder/lib" >/dev/null 2>&1 || true
}

install_program() {
    kept=$(cat "$prefix/extras" 2>/dev/null || true) # what an earlier run was asked for stays
    wanted=$(printf '%s,%s' "$kept" "$extras" | tr ',' '\n' | grep -v '^ *$' | sort -u | paste -s -d , - || true)
    extras=$wanted
    add_packages
    make_venv "$prefix/venv"
    target=$here
    [ -z "$extras" ] || target="$here[$extras]"
    say "Installing agentcli${extras:+ with $extras} into $prefix …"
    install_into "$prefix/venv" --upgrade "$target"
    printf '%s' "$extras" >"$prefix/extras"
    mkdir -p "$bin"
    ln -sf "$prefix/venv/bin/agentcli" "$bin/agentcli"
    say "Installed $("$bin/agentcli" --version): $bin/agentcli"
    case ":$PATH:" in
        *":$bin:"*) ;;
        *) say "$bin is not on your PATH; add it:  export PATH=\"$bin:\$PATH\"" ;;
    esac
}

[ "$verb" = uninstall ] || python=$(find_python)

case $verb in
    install)
        install_program
        say "Start with:  agentcli demo   (a tour without a key), then  agentcli  in a project."
        say "agentcli doctor  says what could be better here;  agentcli completion --help  how your shell completes it."
        ;;
    try)
        extras=${extras:+$extras,}local
        install_program
        "$bin/agentcli" local install
        say ""
        exec "$bin/agentcli" demo --model local/qwen2.5-coder-1.5b-instruct-q4_k_m
        ;;
    test)
        add_packages
        make_venv "$here/.venv"
        say "Installing what the tests need into $here/.venv …"
        install_into "$here/.venv" --editable "$here[dev${extras:+,$extras}]"
        cd "$here"
        exec .venv/bin/python -m pytest -n 4 "$@"
        ;;
    uninstall)
        rm -rf "$prefix/venv" "$prefix/extras"
        rmdir "$prefix" 2>/dev/null || true
        if [ -L "$bin/agentcli" ] && [ ! -e "$bin/agentcli" ]; then rm -f "$bin/agentcli"; fi
        say "Removed. Sessions, settings and downloaded weights are kept; remove them with their folders if you like:"
        say "  ~/.config/agentcli  ~/.local/state/agentcli  ~/.cache/agentcli"
        ;;
esac
