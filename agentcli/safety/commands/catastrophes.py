"""Finds commands that are denied in every mode: they delete everything, overwrite disks, or hand over the shell."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from agentcli.safety.commands.arguments import listed_names
from agentcli.safety.commands.effects import effects_of, operands_of, sources_and_targets
from agentcli.safety.commands.paths import WILDCARD, glob_matches, is_system_path
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, Field, State, name_of, normal
from agentcli.safety.commands.records import known
from agentcli.safety.commands.wrappers import find_wrapper, read_find

REVERSE_SHELL = "it hands the shell to another machine"
_CLIENTS = frozenset("nc ncat netcat nc.traditional nc.openbsd telnet socat openssl ztcp".split())
_SHELL = r"(?<![.\w-])(ba|z|k|da|a|c|tc)?sh\b(?![.\w-])|cmd\.exe|\bpowershell\b"  # the name of a shell, as a whole word


def reverse_shell_traits(fields: Sequence[Field], reads_script: bool, runs_unknown: bool) -> set[str]:
    """Return the parts of a reverse shell that a command contributes. (`Walk` adds `connects` for redirections.)

    `reads_script`: a shell that runs its standard input. `runs_unknown`: an `eval` whose text is not known.
    """
    name = name_of(fields)
    has_unknown_name = bool(fields) and not name  # `$line` may run text that was read from a connection
    found = {
        "shell": reads_script,
        "runs what it reads": runs_unknown or has_unknown_name,
        "client": name in _CLIENTS,
        "fifo": name in ("mkfifo", "mknod"),
    }
    return {trait for trait, is_there in found.items() if is_there}


def makes_reverse_shell(traits: set[str]) -> bool:
    """Return True for a shell fed by a redirected connection, or by a network client through a named pipe."""
    is_fed = "connects" in traits and bool(traits & {"shell", "runs what it reads"})
    return is_fed or {"fifo", "shell", "client"} <= traits


def pipes_reverse_shell(pipeline: Sequence[Sequence[Field]]) -> bool:
    """Return True if a shell in a pipeline reads its commands from its input, and a network client follows it."""
    programs = [_last_program(fields) for fields in pipeline]
    return "shell" in programs and any(name in _CLIENTS for name in programs[programs.index("shell") + 1 :])


def _last_program(fields: Sequence[Field]) -> str:
    """Return the program inside wrappers; "shell" for a shell that reads its commands from its input."""
    while fields and (wrapper := find_wrapper(fields)) is not None:
        if wrapper.reads_script:
            return "shell"
        fields = wrapper.inner
    return name_of(fields)


# A function that pipes itself into itself, or starts itself in the background, with no arguments but its own.
FORK_BOMB = (
    r"(?:^|[\s;&|({])(?:function\s+)?(?P<f>[^\s(){};&|]+)\s*(?:\(\s*\)|(?<=\w)\s)\s*[{(](?:[^}]*[\s;&|({])?"
    r"(?P=f)(?:\s+\$[@*]|\s+\"\$@\")?\s*(?:&(?!&)|\|\s*(?P=f)\b|\|\s*(?P=f)\s*&)"
)


# Returns why a program must not run with these arguments, or "".
Judge = Callable[[Sequence[Field], State], str]


def _netcat_catastrophe(arguments: Sequence[Field], state: State) -> str:
    """Refuse `nc -e`, `nc -c`, `ncat --exec` with a shell, or with a program that may be one."""
    for field, follower in itertools.zip_longest(arguments, arguments[1:], fillvalue=Field("")):
        if found := re.fullmatch(r"(?P<option>-[A-Za-z]*?[ec]|--(sh-|lua-)?exec=?)(?P<program>(?s:.*))", field.text):
            # A program that is not known may be a shell. But `-c` alone proves nothing: it can also mean encryption.
            may_be_shell = not follower.is_known and not found["option"].endswith("c")
            if may_be_shell or re.search(_SHELL, found["program"]) or re.search(_SHELL, follower.text):
                return REVERSE_SHELL
    return ""


def _socat_catastrophe(arguments: Sequence[Field], state: State) -> str:
    runs = any(re.match(r"(exec|system|shell):", field.text, re.IGNORECASE) for field in arguments)
    remote = any(re.match(r"(tcp|udp|openssl|ssl|sctp|socks)", field.text, re.IGNORECASE) for field in arguments)
    return REVERSE_SHELL if runs and remote else ""


_CONNECTING_CODE = (  # program text that opens a connection
    r"\bTCP(Socket|Server)\b|\bIO::Socket::|\bSocket\.tcp|fsockopen|socket_client|\bopen_connection\b"
    r"|\bnet\.Socket|\bnet\.connect|createConnection|/inet/(tcp|udp)|/dev/(tcp|udp)/"
    r"|\b[sS]ocket\b(?s:.*)\b(connect(_ex)?|create_connection|accept)\b"
)
_CODE_HANDING_OVER_SHELL = rf"\bdup2\b|pty\.spawn|\bSTD(IN|OUT)\s*->\s*fdopen|open\s*\(\s*STD(IN|OUT)|{_SHELL}"
_CODE_RUNNING_RECEIVED_TEXT = (  # program text that may run what it has received
    r"\b(popen|system|shell_exec|passthru|exec\w*|spawn\w*|run|call|check_output|getoutput|Popen|eval)\b"
    r"(?s:.*)\b(recv\w*|f?gets|fread|readline)\b|\b(recv\w*|f?gets|fread|readline|getline)\b(?s:.*)"
    r"(\b(popen|system|shell_exec|exec\w*|spawn\w*|run|call|check_output|getoutput|Popen|eval)\b|\|&?\s*getline)"
)
_CODE_OF_FORK_BOMB = (  # program text that forks in an endless loop
    r"\bfork\s+while\s+(1\b|fork\b|true\b)|\bfork\s*\(?\)?\s*while\s+(1|fork|true)|while\s*\(?\s*(1|True|true)\s*\)?\s*[:{]?\s*"
    r"(do\s*)?(os\.|posix\.|pcntl_)?fork\b|\bloop\s*\{\s*fork\b|\bfork\s+until\b"
)
# A quoted text. The group `runs` matches if exec or eval precedes it, which makes it code.
_QUOTED = r"(?P<runs>\b(?:exec|eval)[\s(]*)?(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"


def _interpreter_catastrophe(arguments: Sequence[Field], state: State) -> str:
    """Refuse program text that connects and hands over a shell or runs what it receives, or that forks without end."""
    for text in (field.text for field in arguments):
        hands_over = re.search(_CODE_HANDING_OVER_SHELL, text) or re.search(_CODE_RUNNING_RECEIVED_TEXT, text)
        is_code = re.search(r"[(\s]", text)  # a file's name is not
        if is_code and re.search(_CONNECTING_CODE, text) and hands_over:
            return REVERSE_SHELL
        if re.search(_CODE_OF_FORK_BOMB, re.sub(_QUOTED, lambda found: found[0] if found["runs"] else "''", text)):
            return "it is a fork bomb"
    return ""


_DISK = re.compile(  # the device files of disks, of memory and of I/O ports
    r"/dev/((s|h|v|xv)d[a-z]+\d*|nvme\d+(n\d+(p\d+)?)?|mmcblk\d+(p\d+)?|r?disk\d+(s\d+)*|md\d+|dm-\d+"
    r"|(disk/by-\w+|mapper|block)/.+|mem|kmem|port)"
)


# Programs that only print an answer if `--help` or `--version` is their first argument.
_PROGRAMS_WITH_HELP = frozenset("rm mv cp install chmod chown chgrp shred tee truncate".split())
_OVERWRITING = frozenset(  # programs that write to a disk itself if that is the file they are given
    "dd dcfldd dc3dd ddrescue shred wipe scrub nwipe truncate tee sponge cp install sed curl wget".split()
)


def catastrophe(fields: Sequence[Field], state: State) -> str:
    """Return why a program must never run with its arguments, or ""."""
    name = name_of(fields)
    first = fields[1].text if len(fields) > 1 else ""  # a later `--help` may be the value of another option
    prints_help = first in ("--help", "--version") and name in _PROGRAMS_WITH_HELP
    is_dry_run = first == "-n" and re.fullmatch(r"mkfs\.ext[234]|mke2fs", name)
    if prints_help or is_dry_run:
        return ""
    if name in _OVERWRITING:
        effects = effects_of(fields, state)
        written = known((*effects.writes, *effects.deletes))
        reasons = (write_catastrophe(Field(path, is_glob=bool(WILDCARD.search(path)))) for path in written)
        return next(filter(None, reasons), "")
    is_mkfs = re.fullmatch(r"mkfs\..+|mke2fs.*|newfs.*|mk(ntfs|dosfs|exfatfs|fs_msdos|reiserfs|udffs|swap)", name)
    judge = _JUDGES.get("mkfs" if is_mkfs else name)
    return judge(fields[1:], state) if judge else ""


def write_catastrophe(path: Field) -> str:
    """Return the reason why a file must never be written, or an empty string: it is a disk, or stops the machine."""
    text = normal(path.text) if path.text.startswith("/") else path.text
    folder, _, name = text.rpartition("/")
    # A glob is refused if it matches one of the usual names of disks.
    disks = ("sda", "sda1", "hda", "vda", "vda1", "xvda", "nvme0n1", "nvme1n1p1", "mmcblk0")
    finds_disk = path.is_glob and glob_matches(folder, "/dev") and any(glob_matches(name, disk) for disk in disks)
    if finds_disk or _DISK.fullmatch(text):
        return "it overwrites a disk"
    return "it stops the machine" if text == "/proc/sysrq-trigger" else ""


def _has_option(arguments: Iterable[Field], letter: str, *long_names: str) -> bool:
    """Return True if an option is present: its letter, perhaps among others, or a long name, perhaps abbreviated."""
    before_operands = itertools.takewhile(lambda field: field.text != "--", arguments)
    options = [field.text.partition("=")[0] for field in before_operands if field.text.startswith("-")]
    if letter and any(letter in option for option in options if not option.startswith("--")):
        return True
    # At least four characters, because `--r` could abbreviate several names.
    return any(name.startswith(option) for option in options if len(option) > 3 for name in long_names)


def _rm_catastrophe(arguments: Sequence[Field], state: State) -> str:
    # `rm` itself refuses `.` and `..` (POSIX), but not their absolute paths.
    targets = [field for field in operands_of(arguments) if not re.fullmatch(r"(\.{1,2}/+)*\.{1,2}/*", field.text)]
    is_all = _has_option(arguments, "", "--no-preserve-root") or any(is_system_path(field, state) for field in targets)
    return "it deletes everything" if is_all else ""


def _mv_catastrophe(arguments: Sequence[Field], state: State) -> str:
    sources, _ = sources_and_targets(arguments)
    is_system = any(is_system_path(field, state, includes_home_content=False) for field in sources)
    return "it moves system folders away" if is_system else ""


def _chmod_catastrophe(arguments: Sequence[Field], state: State) -> str:
    # Operands such as `755` or `u:me:rw` are not paths, but checking them like paths does no harm.
    on_system = any(is_system_path(each, state) for each in operands_of(arguments))
    on_everything = on_system or _has_option(arguments, "", "--no-preserve-root")
    is_recursive = _has_option(arguments, "R", "--recursive")
    return "it changes the permissions of the whole system" if on_everything and is_recursive else ""


def _chown_catastrophe(arguments: Sequence[Field], state: State) -> str:
    paths = operands_of(arguments)
    if not _has_option(arguments, "", "--reference"):
        # The first operand is the owner, who is no path: in `cd / && chown -R root x`, `root` would be read as /root.
        paths = paths[1:]
    options = [field for field in arguments if field.text.startswith("-")]
    return _chmod_catastrophe([*options, Field("--"), *paths], state)


def _any_word(pattern: str, why: str) -> Judge:
    """Return the judge for a program that must not run if one of its arguments begins with a match of `pattern`."""
    return lambda arguments, state: why if any(re.match(pattern, field.text) for field in arguments) else ""


def _disk_tool(*verbs: str) -> Judge:
    """Return the judge for a tool that wipes the disk in its arguments if an argument contains one of the verbs.

    A tool without verbs always wipes it.
    """

    def judge(arguments: Sequence[Field], state: State) -> str:
        texts = [field.text for field in arguments]
        wipes = not verbs or any(verb in text for text in texts for verb in verbs)
        return "it wipes a disk" if wipes and any(map(_DISK.fullmatch, texts)) else ""

    return judge


def _kill_catastrophe(arguments: Sequence[Field], state: State) -> str:
    """Refuse `kill -9 -1` and `kill -- -1`, which end every process there is."""
    texts = [field.text for field in arguments]
    if texts[:1] in (["-s"], ["-n"]):
        texts = texts[2:]
    elif texts and re.fullmatch(r"-([A-Z]+|[a-z]+|\d+)", texts[0]) and len(texts) > 1:
        texts = texts[1:]  # the first argument is the signal
    # In a lone `kill -1`, `-1` is a signal, and there is no process.
    return "it ends every process" if "-1" in texts and len(arguments) > 1 else ""


def _find_catastrophe(arguments: Sequence[Field], state: State) -> str:
    call = read_find(arguments)
    ruins = call.deletes_all or any(map(_ruins_found_files, call.runs_on_all))
    starts = call.starts or [Field(".")]
    return "it deletes or damages everything" if ruins and any(is_system_path(each, state) for each in starts) else ""


def _ruins_found_files(words: Sequence[Field]) -> bool:
    """Return True if a command of `-exec`, perhaps inside wrappers, deletes or damages the files that `find` found."""
    while words and (wrapper := find_wrapper(words)) is not None:
        words = wrapper.inner
    # Unlike `name_of`, also the name of a program in an unknown folder, such as `$D/rm`.
    name, ruined = words[0].text.rpartition("/")[2] if words else "", words[1:]
    if name in ("mv", "cp", "install"):  # a move takes its sources away, a copy overwrites its target
        sources, targets = sources_and_targets(ruined)
        ruined = sources if name == "mv" else targets
    can_ruin = name in "rm srm unlink shred truncate chmod chown chgrp mv cp install".split()
    return can_ruin and any(re.fullmatch(r"(\./)?\{\}(/+[*.?]*)?", field.text) for field in ruined)  # `{}` or `{}/*`


def _rsync_catastrophe(arguments: Sequence[Field], state: State) -> str:
    deletes = any(field.text.startswith("--del") for field in arguments)
    target = operands_of(arguments)[-1:]
    return "it deletes everything" if deletes and target and is_system_path(target[0], state) else ""


_JUDGES: dict[str, Judge] = {  # by program: why a call of it, without the program's name, must never run
    **dict.fromkeys(("rm", "srm"), _rm_catastrophe),
    "mv": _mv_catastrophe,
    **dict.fromkeys(("chmod", "setfacl", "chattr"), _chmod_catastrophe),
    **dict.fromkeys(("chown", "chgrp"), _chown_catastrophe),
    "mkfs": _any_word(rf"/dev/|(?s:.*{UNKNOWN_TEXT})", "it formats a disk"),
    "wipefs": _disk_tool("-a", "--all", "af", "fa"),
    "blkdiscard": _disk_tool(),
    "sgdisk": _disk_tool("-Z", "-z", "-o", "--zap", "--clear"),
    "sfdisk": _disk_tool("--delete", "--wipe"),
    "hdparm": _disk_tool("--security-erase", "--trim-sector"),
    "nvme": _disk_tool("format", "sanitize"),
    "cryptsetup": _disk_tool("luksFormat", "luksErase", "erase"),
    "badblocks": _disk_tool("-w"),
    "parted": _disk_tool("mklabel", "mktable"),
    "diskutil": _any_word(r"(?i)erase|zeroDisk|secureErase|partitionDisk", "it wipes a disk"),
    "kill": _kill_catastrophe,
    "killall5": lambda arguments, state: "it ends every process",
    "find": _find_catastrophe,
    "rsync": _rsync_catastrophe,
    **dict.fromkeys(("nc", "ncat", "netcat", "nc.traditional", "nc.openbsd"), _netcat_catastrophe),
    "socat": _socat_catastrophe,
    **dict.fromkeys(listed_names("programs", "interpreters"), _interpreter_catastrophe),
}
