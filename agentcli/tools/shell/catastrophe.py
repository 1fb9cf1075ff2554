"""What no mode lets run: deleting everything, overwriting disks, ending all processes, handing the shell away."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agentcli.tools.shell.effects import sources_and_targets
from agentcli.tools.shell.expansion import HOLE, MAYBE, Field, State, normal
from agentcli.tools.shell.find import read_find

DISK = re.compile(
    r"/dev/((s|h|v|xv)d[a-z]+\d*|nvme\d+(n\d+(p\d+)?)?|mmcblk\d+(p\d+)?|r?disk\d+(s\d+)*|md\d+|dm-\d+"
    r"|(disk/by-\w+|mapper)/.+|mem|kmem|port)"
)
_SYSTEM = frozenset(
    (
        "/ /home /usr /etc /var /bin /sbin /lib /lib32 /lib64 /libx32 /boot /root /opt /dev /proc /sys /nix /Users "
        "/System /Library /Applications /private /usr/bin /usr/sbin /usr/lib /usr/lib64 /usr/share /var/lib /boot/efi "
        "/sys/firmware/efi /sys/firmware/efi/efivars /System/Library /private/etc /private/var"
    ).split()
)
_ALL_OF = re.compile(r"/[.*?]*\*[.*?]*$")


def is_everything(field: Field, state: State, *, of_home: bool = True) -> bool:
    """Whether a path is the root, a folder the system stands on, a home folder, or all that lies in one.

    With `of_home` false, all that lies in the home folder does not count, only the folder.
    """
    text = field.text.replace(MAYBE, "")
    if HOLE in text or not text:
        return False
    paths = [text] if text.startswith("/") else [f"{place}/{text}" for place in state.places or ()]
    return any(_is_everything(path, field.is_glob, state.home, of_home=of_home) for path in paths)


def _is_everything(path: str, is_glob: bool, home: str, *, of_home: bool) -> bool:
    whole = normal(path)
    if is_glob and (found := _ALL_OF.search(whole)):
        whole = whole[: found.start()] or "/"
        if whole == normal(home) and not of_home:
            return False
    home_and_above = _with_parents(normal(home))
    return whole in _SYSTEM or whole in home_and_above


def _with_parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(len(parts) + 1)]


def catastrophe(fields: Sequence[Field], state: State) -> str:
    """Why a command must never run, or an empty string. Wrappers are taken off; redirections are judged apart."""
    if not fields or not fields[0].is_known:
        return ""
    name = fields[0].text.rpartition("/")[2]
    judge = _JUDGES.get("mkfs" if name.startswith(("mkfs.", "mke2fs", "newfs")) else name)
    return judge(fields[1:], state) if judge else ""


def write_catastrophe(path: Field) -> str:
    """Why a file must never be written, or an empty string."""
    text = normal(path.text) if path.text.startswith("/") else path.text
    if DISK.fullmatch(text) or (path.is_glob and text.startswith(("/dev/sd", "/dev/nvme", "/dev/hd", "/dev/vd"))):
        return "it overwrites a disk"
    if text == "/proc/sysrq-trigger":
        return "it stops the machine"
    return ""


def _operands(arguments: Sequence[Field]) -> list[Field]:
    """What is no option, also behind `--`."""
    operands: list[Field] = []
    for at, field in enumerate(arguments):
        if field.text == "--":
            return [*operands, *arguments[at + 1 :]]
        if not field.text.startswith("-") or field.text == "-":
            operands.append(field)
    return operands


def _has(arguments: Sequence[Field], letter: str, *names: str) -> bool:
    """Whether an option is given, alone or among others, a long one also cut short."""
    for field in arguments:
        text = field.text
        if text == "--":
            return False
        if text.startswith("--"):
            name = text.partition("=")[0]
            if len(name) > 3 and any(full.startswith(name) for full in names):
                return True
        elif text.startswith("-") and letter and letter in text:
            return True
    return False


def _rm(arguments: Sequence[Field], state: State) -> str:
    if _has(arguments, "", "--no-preserve-root"):
        return "it deletes everything"
    # `rm` refuses `.` and `..` themselves (POSIX); an absolute path says what is meant.
    meant = [field for field in _operands(arguments) if not re.fullmatch(r"(\.{1,2}/+)*\.{1,2}/*", field.text)]
    return "it deletes everything" if any(is_everything(field, state) for field in meant) else ""


def _shred(arguments: Sequence[Field], state: State) -> str:
    return next((why for field in _operands(arguments) if (why := write_catastrophe(field))), "")


def _mv(arguments: Sequence[Field], state: State) -> str:
    sources, _ = sources_and_targets(arguments)
    if any(is_everything(field, state, of_home=False) for field in sources):
        return "it moves away what the system stands on"
    return ""


def _permissions(arguments: Sequence[Field], state: State) -> str:
    if not _has(arguments, "R", "--recursive"):
        return ""
    operands = _operands(arguments)
    targets = operands if _has(arguments, "", "--reference") else operands[1:]
    if _has(arguments, "", "--no-preserve-root") or any(is_everything(field, state) for field in targets):
        return "it changes the permissions of the whole system"
    return ""


def _mkfs(arguments: Sequence[Field], state: State) -> str:
    if any(field.text.startswith("/dev/") or not field.is_known for field in arguments):
        return "it formats a disk"
    return ""


def _dd(arguments: Sequence[Field], state: State) -> str:
    targets = (Field(field.text[3:], field.is_glob) for field in arguments if field.text.startswith("of="))
    return next((why for target in targets if (why := write_catastrophe(target))), "")


def _writes_operands(arguments: Sequence[Field], state: State) -> str:
    return next((why for field in _operands(arguments) if (why := write_catastrophe(field))), "")


def _copy(arguments: Sequence[Field], state: State) -> str:
    return _writes_operands(_operands(arguments)[-1:], state)


def _wipefs(arguments: Sequence[Field], state: State) -> str:
    is_dry = _has(arguments, "n", "--no-act")
    return "it wipes a disk" if _has(arguments, "a", "--all") and not is_dry and _on_disk(arguments) else ""


def _on_disk(arguments: Sequence[Field]) -> bool:
    return any(DISK.fullmatch(field.text) for field in arguments)


def _disk_tool(*verbs: str) -> Callable[[Sequence[Field], State], str]:
    def judge(arguments: Sequence[Field], state: State) -> str:
        is_told = not verbs or any(verb in field.text for field in arguments for verb in verbs)
        return "it wipes a disk" if is_told and _on_disk(arguments) else ""

    return judge


def _kill(arguments: Sequence[Field], state: State) -> str:
    """`kill -9 -1`, `kill -- -1`: every process there is."""
    texts = [field.text for field in arguments]
    if texts[:1] in (["-s"], ["-n"]):
        texts = texts[2:]
    elif texts and re.fullmatch(r"-([A-Z]+|[a-z]+|\d+)", texts[0]) and len(texts) > 1:
        texts = texts[1:]
    return "it ends every process" if "-1" in texts and (len(texts) > 1 or len(arguments) > 1) else ""


def _find(arguments: Sequence[Field], state: State) -> str:
    call = read_find(arguments)
    if not any(is_everything(start, state) for start in call.starts) or not call.acts_on_all:
        return ""
    deleting = ("rm", "unlink", "shred", "srm")
    names = {field.text.rpartition("/")[2] for words in call.runs for field in words[:3]}
    return "it deletes everything" if call.deletes or names & set(deleting) else ""


def _rsync(arguments: Sequence[Field], state: State) -> str:
    deletes = any(field.text.startswith("--del") for field in arguments)
    target = _operands(arguments)[-1:]
    return "it deletes everything" if deletes and target and is_everything(target[0], state) else ""


def _netcat(arguments: Sequence[Field], state: State) -> str:
    """`nc -e`, `nc -c`, `ncat --exec`: a program at the end of a connection."""
    texts = [field.text for field in arguments]
    executes = any(re.match(r"-[A-Za-df-z]*e|--(sh-|lua-)?exec", text) for text in texts)
    gives_shell = any(re.match(r"-[a-z]*c", text) for text in texts) and any(map(_SHELL.search, texts))
    return REVERSE_SHELL if executes or gives_shell else ""


REVERSE_SHELL = "it hands the shell to another machine"
_SHELL = re.compile(r"/bin/(ba|z|k|da)?sh|\b(ba|z|k|da)?sh\b|cmd\.exe")


def _socat(arguments: Sequence[Field], state: State) -> str:
    runs = any(re.match(r"(exec|system|shell):", field.text, re.IGNORECASE) for field in arguments)
    remote = any(re.match(r"(tcp|udp|openssl|ssl|sctp|socks)", field.text, re.IGNORECASE) for field in arguments)
    return REVERSE_SHELL if runs and remote else ""


_CONNECTS = re.compile(
    r"\bsocket\b|Socket|fsockopen|/inet/(tcp|udp)|\bnet\.(Socket|connect|createConnection)|/dev/(tcp|udp)/"
)
_RUNS_SHELL = re.compile(
    r"\bdup2\b|pty\.spawn|subprocess|\bpopen|\bsystem\b|\bexecv?[ep]?\b|\bspawn|child_process|proc_open|shell_exec"
    rf"|passthru|\|&|{_SHELL.pattern}"
)
_FORKS = re.compile(
    r"\bfork\s+while\s+(1\b|fork\b|true\b)|\bfork\s*\(?\)?\s*while\s+(1|fork|true)|while\s*\(?\s*(1|True|true)\s*\)?\s*[:{]?\s*"
    r"(do\s*)?(os\.|posix\.)?fork\b|\bloop\s*\{\s*fork\b|\bfork\s+until\b"
)


def _interpreter(arguments: Sequence[Field], state: State) -> str:
    """A program text that connects and runs a shell, or forks without end."""
    for field in arguments:
        if _CONNECTS.search(field.text) and _RUNS_SHELL.search(field.text) and re.search(r"[(\s]", field.text):
            return REVERSE_SHELL
        if _FORKS.search(field.text):
            return "it is a fork bomb"
    return ""


_INTERPRETERS = (
    "python python2 python3 pypy pypy3 perl ruby php node nodejs deno bun lua luajit awk gawk mawk tclsh expect"
).split()
_JUDGES = {
    "rm": _rm,
    "srm": _rm,
    "mv": _mv,
    "chmod": _permissions,
    "chown": _permissions,
    "chgrp": _permissions,
    "setfacl": _permissions,
    "chattr": _permissions,
    "mkfs": _mkfs,
    "mkswap": _mkfs,
    "dd": _dd,
    "dcfldd": _dd,
    "shred": _shred,
    "wipe": _shred,
    "truncate": _writes_operands,
    "tee": _writes_operands,
    "sponge": _writes_operands,
    "cp": _copy,
    "install": _copy,
    "wipefs": _wipefs,
    "blkdiscard": _disk_tool(),
    "sgdisk": _disk_tool("-Z", "-z", "-o", "--zap", "--clear"),
    "sfdisk": _disk_tool("--delete", "--wipe"),
    "hdparm": _disk_tool("--security-erase", "--trim-sector"),
    "nvme": _disk_tool("format", "sanitize"),
    "cryptsetup": _disk_tool("luksFormat", "luksErase", "erase"),
    "badblocks": _disk_tool("-w"),
    "parted": _disk_tool("mklabel", "mktable"),
    "diskutil": lambda arguments, state: (
        "it wipes a disk"
        if any(re.match(r"(?i)erase|zeroDisk|secureErase|partitionDisk", field.text) for field in arguments)
        else ""
    ),
    "kill": _kill,
    "killall5": lambda arguments, state: "it ends every process",
    "find": _find,
    "rsync": _rsync,
    "nc": _netcat,
    "ncat": _netcat,
    "netcat": _netcat,
    "nc.traditional": _netcat,
    "nc.openbsd": _netcat,
    "socat": _socat,
    **dict.fromkeys(_INTERPRETERS, _interpreter),
}

NETWORK_CLIENTS = frozenset("nc ncat netcat nc.traditional nc.openbsd telnet socat openssl ztcp".split())
