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

  --extras NAMES  further parts, separated by commas (local: the embedded model)
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

add_package() { # Debian package, what it is needed for
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "Installing the system package $1, which $2."
        apt-get update -qq 2>/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null 2>&1 ||
            fail "could not install $1: run apt-get install $1 and then this again"
    else
        fail "the system package $1 is missing, which $2: install it (sudo apt-get install $1) and run this again"
    fi
}

make_venv() { # folder
    if [ -x "$1/bin/python" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    mkdir -p "$(dirname "$1")"
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --seed --clear --python "$python" "$1" # with pip: the embedded model is fetched through it
    elif ! "$python" -m venv --clear "$1" >/dev/null 2>&1; then
        # Debian keeps this part of Python in a package of its own.
        package=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
        add_package "$package" "Python needs to make a virtual environment"
        "$python" -m venv --clear "$1"
    fi
}

install_into() { # folder, what to install (pip's arguments)
    folder=$1
    shift
    unset PYTHONDONTWRITEBYTECODE # every start would read the source again, at two to five times the cost
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --compile-bytecode --reinstall-package agentcli --python "$folder/bin/python" "$@"
    else
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    fi
    "$folder/bin/python" -m compileall -q "$folder/lib" >/dev/null 2>&1 || true # foreign test files may not compile
}

check_engine() { # folder of the environment that holds the embedded model's engine
    if ! "$1/bin/python" -c 'import xllamacpp' >/dev/null 2>&1 &&
        ! "$1/bin/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' >/dev/null 2>&1; then
        add_package libgomp1 "the embedded model's engine computes with"
    fi
}

install_program() {
    make_venv "$prefix/venv"
    kept=$(cat "$prefix/extras" 2>/dev/null || true) # what an earlier run was asked for stays
    wanted=$(printf '%s,%s' "$kept" "$extras" | tr ',' '\n' | grep -v '^ *$' | sort -u | paste -s -d , - || true)
    target=$here
    [ -z "$wanted" ] || target="$here[$wanted]"
    say "Installing agentcli${wanted:+ with $wanted} into $prefix …"
    install_into "$prefix/venv" --upgrade "$target"
    printf '%s' "$wanted" >"$prefix/extras"
    case ",$wanted," in *,local,*) check_engine "$prefix/venv" ;; esac
    mkdir -p "$bin"
    ln -sf "$prefix/venv/bin/agentcli" "$bin/agentcli"
    say "Installed $("$bin/agentcli" --version): $bin/agentcli"
    case ":$PATH:" in
        *":$bin:"*) ;;
        *) say "$bin is not on your PATH; add it:  export PATH=\"$bin:\$PATH\"" ;;
    esac
    command -v git >/dev/null 2>&1 || say "git is not installed; agentcli works best with it (apt-get install git)."
    if [ "$(uname -s)" = Linux ] && ! command -v bwrap >/dev/null 2>&1; then
        say "bubblewrap is not installed; commands are confined best with it (apt-get install bubblewrap)."
    fi
}

case $verb in
    install)
        install_program
        say "Start with:  agentcli demo   (a tour without a key), then  agentcli  in a project."
        ;;
    try)
        extras=${extras:+$extras,}local
        install_program
        "$bin/agentcli" local install
        say ""
        exec "$bin/agentcli" demo --model local/qwen2.5-coder-1.5b-instruct-q4_k_m
        ;;
    test)
        make_venv "$here/.venv"
        say "Installing what the tests need into $here/.venv …"
        install_into "$here/.venv" --editable "$here[dev${extras:+,$extras}]"
        case ",$extras," in *,local,*) check_engine "$here/.venv" ;; esac
        cd "$here"
        exec .venv/bin/python -m pytest -n 2 "$@"
        ;;
    uninstall)
        rm -rf "$prefix/venv" "$prefix/extras"
        rmdir "$prefix" 2>/dev/null || true
        if [ -L "$bin/agentcli" ] && [ ! -e "$bin/agentcli" ]; then rm -f "$bin/agentcli"; fi
        say "Removed. Sessions, settings and downloaded weights are kept; remove them with their folders if you like:"
        say "  ~/.config/agentcli  ~/.local/state/agentcli  ~/.cache/agentcli"
        ;;
esac
