"""Finds commands refused in every mode: deleting everything, overwriting disks, reverse shells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from agentcli.safety.commands.judge.handover import HANDING_OVER
from agentcli.safety.commands.programs.effects import sources_and_targets
from agentcli.safety.commands.programs.find import read_find
from agentcli.safety.commands.programs.system_paths import finds, is_system_path
from agentcli.safety.commands.programs.wrappers import take_off
from agentcli.safety.commands.reader.syntax import Field, State, normal

Judge = Callable[[Sequence[Field], State], str]

_DISK = re.compile(
    r"/dev/((s|h|v|xv)d[a-z]+\d*|nvme\d+(n\d+(p\d+)?)?|mmcblk\d+(p\d+)?|r?disk\d+(s\d+)*|md\d+|dm-\d+"
    r"|(disk/by-\w+|mapper|block)/.+|mem|kmem|port)"
)
_ANSWERING = frozenset("rm mv cp install chmod chown chgrp shred tee truncate".split())
_MKFS = re.compile(r"mkfs\..+|mke2fs.*|newfs.*|mk(ntfs|dosfs|exfatfs|fs_msdos|reiserfs|udffs|swap)")


def catastrophe(fields: Sequence[Field], state: State) -> str:
    """The reason why a command must never run, or an empty string. Wrappers are off; redirections are judged apart."""
    if not fields or not fields[0].is_known:
        return ""
    name = fields[0].text.rpartition("/")[2]
    first = fields[1].text if len(fields) > 1 else ""
    if name in _ANSWERING and first in ("--help", "--version"):
        return ""  # as the first option: the program answers or complains, and ends
    if re.fullmatch(r"mkfs\.ext[234]|mke2fs", name) and first == "-n":
        return ""  # only as the first option: further on it may be the value of another one
    judge = _JUDGES.get("mkfs" if _MKFS.fullmatch(name) else name)
    return judge(fields[1:], state) if judge else ""


def write_catastrophe(path: Field) -> str:
    """The reason why a file must never be written, or an empty string."""
    text = normal(path.text) if path.text.startswith("/") else path.text
    if _DISK.fullmatch(text) or (path.is_glob and _finds_disk(text)):
        return "it overwrites a disk"
    return "it stops the machine" if text == "/proc/sysrq-trigger" else ""


def _finds_disk(glob: str) -> bool:
    folder, _, name = glob.rpartition("/")
    disks = ("sda", "sda1", "hda", "vda", "vda1", "xvda", "nvme0n1", "nvme1n1p1", "mmcblk0")
    return finds(folder, "/dev") and any(finds(name, disk) for disk in disks)


def _operands(arguments: Sequence[Field]) -> list[Field]:
    """The arguments that are not options, also those behind `--`."""
    before = list(itertools.takewhile(lambda field: field.text != "--", arguments))
    return [field for field in before if field.text[:1] != "-" or field.text == "-"] + [*arguments[len(before) + 1 :]]


def _has(arguments: Iterable[Field], letter: str, *names: str) -> bool:
    """True if an option is given, alone or among other letters; a long one also if abbreviated."""
    for field in itertools.takewhile(lambda field: field.text != "--", arguments):
        name = field.text.partition("=")[0]
        if name.startswith("--"):
            if len(name) > 3 and any(full.startswith(name) for full in names):
                return True
        elif name.startswith("-") and letter and letter in name:
            return True
    return False


def _rm(arguments: Sequence[Field], state: State) -> str:
    # `rm` itself refuses `.` and `..` (POSIX), but not their absolute paths.
    meant = [field for field in _operands(arguments) if not re.fullmatch(r"(\.{1,2}/+)*\.{1,2}/*", field.text)]
    is_all = _has(arguments, "", "--no-preserve-root") or any(is_system_path(field, state) for field in meant)
    return "it deletes everything" if is_all else ""


def _mv(arguments: Sequence[Field], state: State) -> str:
    sources, _ = sources_and_targets(arguments)
    is_system = any(is_system_path(field, state, of_home=False) for field in sources)
    return "it moves away what the system stands on" if is_system else ""


def _permissions(arguments: Sequence[Field], state: State) -> str:
    """Modes, attributes and access lists are checked like paths, which does no harm."""
    is_all = _has(arguments, "", "--no-preserve-root") or any(
        is_system_path(each, state) for each in _operands(arguments)
    )
    return "it changes the permissions of the whole system" if is_all and _has(arguments, "R", "--recursive") else ""


def _owner(arguments: Sequence[Field], state: State) -> str:
    """Like `_permissions`, but an owner can have the name of a folder: `cd / && chown -R root x`."""
    is_named = not _has(arguments, "", "--reference")
    options = [field for field in arguments if field.text.startswith("-")]
    return _permissions([*options, Field("--"), *_operands(arguments)[is_named:]], state)


def _mkfs(arguments: Sequence[Field], state: State) -> str:
    is_disk = any(field.text.startswith("/dev/") or not field.is_known for field in arguments)
    return "it formats a disk" if is_disk else ""


def _writes(targets: Iterable[Field]) -> str:
    return next((why for field in targets if (why := write_catastrophe(field))), "")


def _writes_operands(arguments: Sequence[Field], state: State) -> str:
    return _writes(_operands(arguments))


def _dd(arguments: Sequence[Field], state: State) -> str:
    given = ((*field.text.partition("="), field.is_glob) for field in arguments)
    return _writes(Field(path, is_glob) for name, _, path, is_glob in given if name in ("of", "hof", "ofs", "wipe"))


def _output(letter: str, name: str) -> Judge:
    """A check for programs that write where an option says."""
    form = re.compile(rf"-[A-Za-z]*?{letter}(?P<short>.*)|{name}=(?P<long>.*)|{name}", re.DOTALL)

    def judge(arguments: Sequence[Field], state: State) -> str:
        pairs = itertools.zip_longest(arguments, arguments[1:], fillvalue=Field(""))
        given = [(found, field, follower) for field, follower in pairs if (found := form.fullmatch(field.text))]
        texts = [(found["short"] or found["long"], field, follower) for found, field, follower in given]
        return _writes(Field(text, field.is_glob) if text else follower for text, field, follower in texts)

    return judge


def _sed(arguments: Sequence[Field], state: State) -> str:
    is_in_place = any(re.match(r"-[nErsuz]*i|--in-place", field.text) for field in arguments)
    return _writes_operands(arguments, state) if is_in_place else ""


def _disk_tool(*verbs: str, unless: str = "") -> Judge:
    def judge(arguments: Sequence[Field], state: State) -> str:
        texts = [field.text for field in arguments]
        is_told = not verbs or any(verb in text for text in texts for verb in verbs)
        is_dry = bool(unless) and _has(arguments, unless, "--no-act")
        return "it wipes a disk" if is_told and not is_dry and any(map(_DISK.fullmatch, texts)) else ""

    return judge


def _diskutil(arguments: Sequence[Field], state: State) -> str:
    is_told = any(re.match(r"(?i)erase|zeroDisk|secureErase|partitionDisk", field.text) for field in arguments)
    return "it wipes a disk" if is_told else ""


def _kill(arguments: Sequence[Field], state: State) -> str:
    """`kill -9 -1` and `kill -- -1` end every process there is."""
    texts = [field.text for field in arguments]
    if texts[:1] in (["-s"], ["-n"]):
        texts = texts[2:]
    elif texts and re.fullmatch(r"-([A-Z]+|[a-z]+|\d+)", texts[0]) and len(texts) > 1:
        texts = texts[1:]
    return "it ends every process" if "-1" in texts and (len(texts) > 1 or len(arguments) > 1) else ""


def _find(arguments: Sequence[Field], state: State) -> str:
    call = read_find(arguments)
    ruins = call.deletes_all or any(map(_ruins, call.runs_on_all))
    starts = call.starts or [Field(".")]
    return "it deletes or spoils everything" if ruins and any(is_system_path(each, state) for each in starts) else ""


_FOUND = re.compile(r"(\./)?\{\}(/+[*.?]*)?")  # stands for the found file in `-exec`
_RUINING = frozenset("rm srm unlink shred truncate chmod chown chgrp mv cp install".split())


def _ruins(words: Sequence[Field]) -> bool:
    """True if a command deletes or spoils the files that `find` found, also behind wrappers."""
    while words and (layer := take_off(words)) is not None:
        words = layer.inner
    if not words:
        return False
    name, arguments = words[0].text.rpartition("/")[2], words[1:]
    if name in ("mv", "cp", "install"):
        sources, targets = sources_and_targets(arguments)
        arguments = tuple(sources if name == "mv" else targets)
    return name in _RUINING and any(_FOUND.fullmatch(field.text) for field in arguments)


def _rsync(arguments: Sequence[Field], state: State) -> str:
    deletes = any(field.text.startswith("--del") for field in arguments)
    target = _operands(arguments)[-1:]
    return "it deletes everything" if deletes and target and is_system_path(target[0], state) else ""


_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("rm", "srm"), _rm),
    "mv": _mv,
    **dict.fromkeys(("chmod", "setfacl", "chattr"), _permissions),
    **dict.fromkeys(("chown", "chgrp"), _owner),
    "mkfs": _mkfs,
    **dict.fromkeys(("dd", "dcfldd", "dc3dd"), _dd),
    **dict.fromkeys("shred wipe scrub nwipe truncate tee sponge".split(), _writes_operands),
    "ddrescue": lambda arguments, state: _writes(_operands(arguments)[1:]),
    **dict.fromkeys(("cp", "install"), lambda arguments, state: _writes(_operands(arguments)[-1:])),
    "sed": _sed,
    "curl": _output("o", "--output"),
    "wget": _output("O", "--output-document"),
    "wipefs": _disk_tool("-a", "--all", "af", "fa", unless="n"),
    "blkdiscard": _disk_tool(),
    "sgdisk": _disk_tool("-Z", "-z", "-o", "--zap", "--clear"),
    "sfdisk": _disk_tool("--delete", "--wipe"),
    "hdparm": _disk_tool("--security-erase", "--trim-sector"),
    "nvme": _disk_tool("format", "sanitize"),
    "cryptsetup": _disk_tool("luksFormat", "luksErase", "erase"),
    "badblocks": _disk_tool("-w"),
    "parted": _disk_tool("mklabel", "mktable"),
    "diskutil": _diskutil,
    "kill": _kill,
    "killall5": lambda arguments, state: "it ends every process",
    "find": _find,
    "rsync": _rsync,
    **HANDING_OVER,
}
