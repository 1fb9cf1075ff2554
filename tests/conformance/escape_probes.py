"""Attempts to get out of a sandbox, each as a function; run inside by a bare Python, which prints what they achieved.

Argument: a JSON object of places and numbers. Output: {"probe": "open" | "denied: why"}. An attempt that raises was
denied; where the attempt itself cannot tell, the effect is looked for from outside.
"""

# Attempts are system calls; what a wrapper does with a path before it does not matter here.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH108, PTH110, PTH118, PTH123, PTH211

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable

IS_ARM = os.uname().machine == "aarch64"
libc = ctypes.CDLL(None, use_errno=True)
PROBES: dict[str, Callable[[dict], object]] = {}


def probe(function: Callable[[dict], object]) -> Callable[[dict], object]:
    PROBES[function.__name__] = function
    return function


def write(path: str, text: str = "changed") -> None:
    with open(path, "w") as file:
        file.write(text)


def syscall(x86: int, arm: int, *arguments: object) -> int:
    result = libc.syscall(ctypes.c_long(arm if IS_ARM else x86), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# --- files outside


@probe
def write_by_absolute_path(at: dict) -> None:
    write(f"{at['outside']}/write_by_absolute_path")


@probe
def write_through_dot_dot(at: dict) -> None:
    write(f"{at['ws']}/../outside/write_through_dot_dot")


@probe
def write_through_symlink(at: dict) -> None:
    os.symlink(at["outside"], f"{at['ws']}/way_out")
    try:
        write(f"{at['ws']}/way_out/write_through_symlink")
    finally:
        os.unlink(f"{at['ws']}/way_out")


@probe
def write_through_proc_root(at: dict) -> None:
    write(f"/proc/self/root{at['outside']}/write_through_proc_root")


@probe
def truncate(at: dict) -> None:
    os.truncate(f"{at['outside']}/truncate", 0)


@probe
def unlink(at: dict) -> None:
    os.unlink(f"{at['outside']}/unlink")


@probe
def rename_over(at: dict) -> None:
    write(f"{at['ws']}/new")
    os.rename(f"{at['ws']}/new", f"{at['outside']}/rename_over")


@probe
def rename_away(at: dict) -> None:
    os.rename(f"{at['outside']}/rename_away", f"{at['ws']}/stolen")


@probe
def make_folder(at: dict) -> None:
    os.mkdir(f"{at['outside']}/folder")


@probe
def change_mode(at: dict) -> None:
    os.chmod(f"{at['outside']}/change_mode", 0o777)


@probe
def change_time(at: dict) -> None:
    os.utime(f"{at['outside']}/change_time", (1, 1))


@probe
def change_attribute(at: dict) -> None:
    os.setxattr(f"{at['outside']}/change_attribute", "user.probe", b"changed")


@probe
def make_hard_link(at: dict) -> None:
    os.link(f"{at['outside']}/make_hard_link", f"{at['ws']}/hard_link")
    write(f"{at['ws']}/hard_link")


@probe
def write_through_existing_hard_link(at: dict) -> None:
    write(f"{at['ws']}/existing_hard_link")


@probe
def write_home(at: dict) -> None:
    write(f"{at['home']}/.bashrc")


@probe
def write_kernel_setting(at: dict) -> None:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


@probe
def write_sysfs(at: dict) -> None:
    os.close(os.open("/sys/kernel/profiling", os.O_WRONLY))


@probe
def write_block_device(at: dict) -> None:
    name = next(n for n in os.listdir("/sys/class/block") if not n.startswith("loop"))
    os.close(os.open(f"/dev/{name}", os.O_WRONLY))


# --- secrets


def read(path: str) -> None:
    with open(path) as file:
        if "SECRET" not in file.read():
            raise PermissionError("nothing in it")


@probe
def read_masked_file(at: dict) -> None:
    read(f"{at['home']}/.netrc")


@probe
def read_in_masked_folder(at: dict) -> None:
    read(f"{at['home']}/.ssh/id_ed25519")


@probe
def list_masked_folder(at: dict) -> None:
    os.listdir(f"{at['home']}/.ssh")


@probe
def read_through_masked_symlink(at: dict) -> None:
    read(f"{at['home']}/real-keys/key")


@probe
def read_masked_in_workspace(at: dict) -> None:
    read(f"{at['ws']}/.env")


@probe
def replace_masked_in_workspace(at: dict) -> None:
    write(f"{at['ws']}/other")
    os.rename(f"{at['ws']}/other", f"{at['ws']}/.env")


@probe
def read_granted_exception(at: dict) -> None:
    read(f"{at['home']}/.ssh/known_hosts")


@probe
def read_home(at: dict) -> None:
    with open(f"{at['home']}/notes") as file:
        file.read()


# --- other processes


@probe
def read_environment_of_other(at: dict) -> None:
    with open(f"/proc/{at['victim']}/environ", "rb") as file:
        if b"VICTIM=SECRET" not in file.read():
            raise PermissionError("not that process")


@probe
def signal_other(at: dict) -> None:
    os.kill(at["victim"], 0)  # the effect, had it been another signal
    with open(f"/proc/{at['victim']}/cmdline", "rb") as file:
        if b"sleep" not in file.read():
            raise PermissionError("not that process")


@probe
def trace_other(at: dict) -> None:
    attach = 16
    detach = 17
    syscall(101, 117, attach, at["victim"], None, None)
    os.waitpid(at["victim"], 0x40000000)
    syscall(101, 117, detach, at["victim"], None, None)


@probe
def trace_child(at: dict) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 1)
    if os.waitpid(child, 0)[1]:
        raise PermissionError("refused")


# --- network and sockets


@probe
def connect_tcp(at: dict) -> None:
    socket.create_connection(("127.0.0.1", at["tcp"]), timeout=2).close()


@probe
def send_udp(at: dict) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", at["udp"]))
        sender.send(b"packet")
        sender.settimeout(0.2)
        sender.recv(10)  # the listener answers; on an interface of our own nobody does


@probe
def open_netlink(at: dict) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()


@probe
def open_vsock(at: dict) -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


@probe
def open_packet_socket(at: dict) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


@probe
def open_alg_socket(at: dict) -> None:
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()


def connect_unix(address: str | bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)


@probe
def connect_unix_socket_in_home(at: dict) -> None:
    connect_unix(f"{at['home']}/agent.sock")


@probe
def connect_unix_socket_in_tmp(at: dict) -> None:
    connect_unix(at["tmp_socket"])


@probe
def connect_abstract_socket(at: dict) -> None:
    connect_unix(b"\0" + at["abstract"].encode())


@probe
def use_own_loopback(at: dict) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=2).close()
        server.accept()[0].close()


@probe
def use_socket_pair(at: dict) -> None:
    for end in socket.socketpair():
        end.close()


# --- the kernel


@probe
def io_uring(at: dict) -> None:
    os.close(syscall(425, 425, 4, ctypes.create_string_buffer(120)))


@probe
def new_user_namespace(at: dict) -> None:
    in_child(lambda: syscall(272, 97, 0x10000000))


@probe
def new_user_namespace_by_clone(at: dict) -> None:
    child = syscall(56, 220, ctypes.c_ulong(0x10000000 | 17), None, None, None, None)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


@probe
def new_namespace_by_clone3(at: dict) -> None:
    arguments = struct.pack("11Q", 0x10000000, *[0] * 3, 17, *[0] * 6)
    child = syscall(435, 435, arguments, len(arguments))
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


@probe
def new_namespace_by_program(at: dict) -> None:
    subprocess.run(["unshare", "-Ur", "true"], check=True, capture_output=True)


@probe
def mount(at: dict) -> None:
    try:
        syscall(165, 40, b"none", b"/nowhere", b"tmpfs", 0, None)
    except FileNotFoundError:  # allowed to try
        pass


@probe
def enter_namespace(at: dict) -> None:
    own = os.open("/proc/self/ns/ipc", os.O_RDONLY)
    try:
        in_child(lambda: syscall(308, 268, own, 0))
    finally:
        os.close(own)


@probe
def keys(at: dict) -> None:
    user_keyring = ctypes.c_int(-4)
    syscall(250, 219, 0, user_keyring, 1)


@probe
def bpf(at: dict) -> None:
    os.close(syscall(321, 280, 0, struct.pack("IIIII", 2, 4, 4, 1, 0) + bytes(100), 120))


@probe
def perf_events(at: dict) -> None:
    attributes = struct.pack("IIQ", 1, 120, 0) + bytes(104)
    os.close(syscall(298, 241, attributes, 0, -1, -1, 0))


@probe
def user_fault(at: dict) -> None:
    user_mode_only = 1
    os.close(syscall(323, 282, user_mode_only))


@probe
def type_into_terminal(at: dict) -> None:
    master, slave = os.openpty()
    try:
        in_child(lambda: (os.setsid(), fcntl.ioctl(slave, 0x540E, 0), fcntl.ioctl(slave, 0x5412, b"x")))
    finally:
        os.close(master)
        os.close(slave)


@probe
def type_into_terminal_with_high_bits(at: dict) -> None:
    master, slave = os.openpty()
    try:
        request = ctypes.c_ulong(0x1_0000_5412)
        in_child(lambda: (os.setsid(), fcntl.ioctl(slave, 0x540E, 0), syscall(16, 29, slave, request, b"x")))
    finally:
        os.close(master)
        os.close(slave)


def in_child(attempt: Callable[[], object]) -> None:
    child = os.fork()
    if not child:
        try:
            attempt()
        except OSError as error:
            os._exit(min(error.errno or 1, 250))
        except BaseException:
            os._exit(251)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


@probe
def gain_capabilities(at: dict) -> None:
    with open("/proc/self/status") as file:
        effective = next(line for line in file if line.startswith("CapEff")).split()[1]
    if int(effective, 16) == 0:
        raise PermissionError("none")


@probe
def use_inherited_descriptor(at: dict) -> None:
    others = [n for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")]
    if not others:
        raise PermissionError("none")


# --- the repository and protected names


@probe
def write_hook(at: dict) -> None:
    write(f"{at['ws']}/.git/hooks/pre-commit")


@probe
def replace_hooks(at: dict) -> None:
    os.rename(f"{at['ws']}/.git/hooks", f"{at['ws']}/.git/hooks2")
    os.rename(f"{at['ws']}/.git/hooks2", f"{at['ws']}/.git/hooks")


@probe
def write_git_config(at: dict) -> None:
    subprocess.run(["git", "config", "core.fsmonitor", "evil"], cwd=at["ws"], check=True, capture_output=True)


@probe
def replace_git_config(at: dict) -> None:
    write(f"{at['ws']}/config")
    os.rename(f"{at['ws']}/config", f"{at['ws']}/.git/config")


@probe
def write_worktree_config(at: dict) -> None:
    write(f"{at['ws']}/.git/config.worktree")


@probe
def redirect_common_folder(at: dict) -> None:
    write(f"{at['ws']}/.git/commondir", "../evil\n")


@probe
def replace_common_folder_file(at: dict) -> None:
    os.unlink(f"{at['ws']}/.git/commondir")
    write(f"{at['ws']}/.git/commondir", "../evil\n")


@probe
def write_submodule_config(at: dict) -> None:
    write(f"{at['ws']}/.git/modules/libs/sub/config")


@probe
def write_submodule_hook(at: dict) -> None:
    write(f"{at['ws']}/.git/modules/libs/sub/hooks/post-checkout")


@probe
def rename_git_folder(at: dict) -> None:
    os.rename(f"{at['ws']}/.git", f"{at['ws']}/.git2")
    os.rename(f"{at['ws']}/.git2", f"{at['ws']}/.git")


@probe
def write_hook_named_in_config(at: dict) -> None:
    write(f"{at['ws']}/tools/hooks/pre-push")


@probe
def replace_folder_of_hooks_named_in_config(at: dict) -> None:
    os.rename(f"{at['ws']}/tools", f"{at['ws']}/tools2")
    os.rename(f"{at['ws']}/tools2", f"{at['ws']}/tools")


@probe
def write_hook_of_nested_repository(at: dict) -> None:
    write(f"{at['ws']}/vendor/lib/.git/hooks/post-checkout")


@probe
def write_config_of_nested_repository(at: dict) -> None:
    write(f"{at['ws']}/vendor/lib/.git/config")


@probe
def make_protected_folder(at: dict) -> None:
    os.makedirs(f"{at['ws']}/.agentcli/hooks")


@probe
def make_protected_file(at: dict) -> None:
    write(f"{at['ws']}/.mcp.json")


@probe
def write_protected_file(at: dict) -> None:
    write(f"{at['ws']}/.vscode/tasks.json")


@probe
def replace_protected_folder(at: dict) -> None:
    os.rename(f"{at['ws']}/.vscode", f"{at['ws']}/.vscode2")
    os.rename(f"{at['ws']}/.vscode2", f"{at['ws']}/.vscode")


# --- what has to work


@probe
def write_workspace(at: dict) -> None:
    write(f"{at['ws']}/written")


@probe
def write_granted_path(at: dict) -> None:
    write(f"{at['granted']}/written")


@probe
def write_own_tmp(at: dict) -> None:
    write(os.path.join(os.environ.get("TMPDIR", at["tmp_folder"]), "written"))


@probe
def write_shared_tmp(at: dict) -> None:
    write(f"{at['tmp_folder']}/written")


@probe
def write_null(at: dict) -> None:
    write("/dev/null")


@probe
def run_from_memory(at: dict) -> None:
    memory = os.memfd_create("program")
    try:
        with open("/bin/true", "rb") as file:
            os.write(memory, file.read())
        subprocess.run([f"/proc/self/fd/{memory}"], check=True, pass_fds=(memory,))
    finally:
        os.close(memory)


def main() -> None:
    at = json.loads(sys.argv[1])
    outcomes = {}
    for name, attempt in PROBES.items():
        try:
            attempt(at)
            outcomes[name] = "open"
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            outcomes[name] = f"denied: {error}"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
