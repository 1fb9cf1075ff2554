"""The filter of system calls, run instruction by instruction as the kernel would, for both processors."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from agentcli.infra.sandbox.backends.seccomp import (
    ARCHITECTURES,
    CHECKED,
    CLONE3,
    DENIED,
    GIVES_MODE,
    NEW_NAMESPACES,
    OPENAT2,
    filter_program,
)

ALLOWED = 0x7FFF0000
ERRNO = 0x00050000
EPERM = ERRNO | errno.EPERM
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_VSOCK = 1, 2, 10, 16, 17, 40

both = pytest.mark.parametrize("machine", list(ARCHITECTURES))


def answer(machine: str, number: int, *arguments: int, internet: bool = False, audit: int | None = None) -> int:
    """What the filter gives for one call: classic BPF, as far as the filter uses it."""
    audit = ARCHITECTURES[machine][0] if audit is None else audit
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("<HBBI", filter_program(internet=internet, machine=machine)))
    at = value = 0
    while True:
        opcode, if_true, if_false, operand = program[at]
        at += 1
        match opcode:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x15:
                at += if_true if value == operand else if_false
            case 0x35:
                at += if_true if value >= operand else if_false
            case 0x45:
                at += if_true if value & operand else if_false
            case 0x06:
                return operand
            case _:
                raise AssertionError(opcode)


def number(machine: str, name: str) -> int:
    return CHECKED[name][ARCHITECTURES[machine][1]]


@both
def test_listed_commands_are_refused(machine: str) -> None:
    column = ARCHITECTURES[machine][1]
    for name, numbers in DENIED.items():
        if numbers[column] is not None:
            assert answer(machine, numbers[column]) == EPERM, name


@both
def test_no_file_gets_the_set_user_id_bit(machine: str) -> None:
    o_creat, o_tmpfile = 0o100, 0o20000000
    for name, (*numbers, mode_at, flags_at) in GIVES_MODE.items():
        call = numbers[ARCHITECTURES[machine][1]]
        if call is None:
            continue
        for mode, flags, expected in [
            (0o755, o_creat, ALLOWED),
            (0o2775, o_creat, ALLOWED),
            (0o4755, o_creat, EPERM),
            (0o6711, o_creat | 0o1, EPERM),
            (0o4000, o_tmpfile | 0o1, EPERM),
            (0o4755, 0, EPERM if flags_at is None else ALLOWED),  # opening what is there: nothing is said of a mode
        ]:
            arguments = [0, 0, 0, 0]
            arguments[mode_at] = mode
            if flags_at is not None:
                arguments[flags_at] = flags
            assert answer(machine, call, *arguments) == expected, (name, oct(mode), flags)
    assert answer(machine, OPENAT2) == ERRNO | errno.ENOSYS


@both
@pytest.mark.parametrize(("family", "internet", "expected"), [
    (AF_UNIX, False, ALLOWED), (AF_UNIX, True, ALLOWED), (AF_INET, False, EPERM), (AF_INET, True, ALLOWED),
    (AF_INET6, True, ALLOWED), (AF_NETLINK, True, EPERM), (AF_PACKET, True, EPERM), (AF_VSOCK, True, EPERM),
    (0, True, EPERM),
])  # fmt: skip
def test_sockets_by_family(machine: str, family: int, internet: bool, expected: int) -> None:
    for call in (number(machine, "socket"), number(machine, "socketpair")):
        assert answer(machine, call, family, internet=internet) == expected
        assert answer(machine, call, family | 7 << 32, internet=internet) == expected  # the kernel looks at 32 bits


@both
@pytest.mark.parametrize("bit", [1 << n for n in range(32) if NEW_NAMESPACES & 1 << n])
def test_new_namespaces_are_refused(machine: str, bit: int) -> None:
    assert answer(machine, number(machine, "clone"), bit | 17) == EPERM
    assert answer(machine, number(machine, "unshare"), bit) == EPERM


@both
def test_processes_and_threads_are_not(machine: str) -> None:
    assert answer(machine, number(machine, "clone"), 17) == ALLOWED
    assert answer(machine, number(machine, "clone"), 0x003D0F00) == ALLOWED  # a thread of glibc's
    assert answer(machine, number(machine, "unshare"), 0x400) == ALLOWED
    assert answer(machine, CLONE3) == ERRNO | errno.ENOSYS  # so that C libraries take clone


@both
def test_typing_into_terminals_is_refused_however_it_is_written(machine: str) -> None:
    ioctl = number(machine, "ioctl")
    for request in (0x5412, 0x541C, 0x1_0000_5412, 0xFFFF_FFFF_0000_541C):
        assert answer(machine, ioctl, 0, request) == EPERM
    assert answer(machine, ioctl, 0, 0x5401) == ALLOWED


@both
def test_other_numberings_of_calls_are_refused(machine: str) -> None:
    i386 = 0x40000003
    assert answer(machine, 1, audit=i386) == EPERM
    if machine == "x86_64":
        assert answer(machine, 0x40000000 | 1) == EPERM


@both
def test_everything_else_is_allowed(machine: str) -> None:
    column = ARCHITECTURES[machine][1]
    special = {n[column] for n in DENIED.values()} | {number(machine, "socket"), number(machine, "socketpair")}
    others = {*range(470)} - special - {CLONE3, OPENAT2}
    assert {answer(machine, call) for call in others} == {ALLOWED}


def test_a_processor_that_is_not_known_gets_no_filter_rather_than_a_wrong_one() -> None:
    with pytest.raises(NotImplementedError, match="riscv64"):
        filter_program(internet=False, machine="riscv64")


@pytest.mark.parametrize(("column", "header"), [
    (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), (1, "/usr/include/asm-generic/unistd.h"),
])  # fmt: skip
def test_the_numbers_are_those_of_the_kernels_headers(column: int, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"no {header}")
    told = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    known = {name: numbers[column] for name, numbers in (DENIED | CHECKED).items() if name in told}
    assert len(known) > 40
    assert known == {name: int(told[name]) for name in known}
