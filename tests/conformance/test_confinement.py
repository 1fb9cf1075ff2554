"""What confinement owes: commands that do their work in the workspace and nothing elsewhere. Escapes are attempted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Bounds
from tests.conformance import escape_probes
from tests.conformance.confining import Surroundings, confinement_for, folder_on_disk, picture, python_of, run
from tests.rows import each_row

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="confinement is for Linux")

# What a command is meant to be able to do.
MEANT = frozenset(
    "read_granted_exception read_home use_own_loopback use_socket_pair write_workspace write_granted_path write_own_tmp"
    " write_null run_from_memory".split()
)
# An outside file that has a name in the workspace is the workspace's. Who edits files for the model sees link counts.
KNOWN = frozenset({"write_through_existing_hard_link"})
# Landlock has no say in these: `Landlock.limits` tells the person.
BEYOND_LANDLOCK = frozenset(
    "change_mode change_time change_attribute connect_unix_socket_in_home connect_unix_socket_in_tmp list_masked_folder"
    " read_masked_in_workspace replace_masked_in_workspace write_hook replace_hooks write_git_config replace_git_config"
    " write_worktree_config write_git_attributes redirect_common_folder replace_common_folder_file"
    " write_submodule_config write_submodule_hook rename_git_folder write_hook_named_in_config"
    " replace_folder_of_hooks_named_in_config write_hook_of_nested_repository write_config_of_nested_repository"
    " make_protected_folder make_protected_file write_protected_file replace_protected_folder".split()
)
# These leave a trace in the file outside that is named like them.
CHANGES_ITS_FILE_OUTSIDE = KNOWN | {"change_mode", "change_time", "change_attribute"}
OPEN = {
    "bubblewrap, root": MEANT | KNOWN,
    "bubblewrap, root in a user namespace": MEANT | KNOWN,
    "bubblewrap, user": MEANT | KNOWN,
    "landlock, root": (MEANT | KNOWN | BEYOND_LANDLOCK) - {"use_own_loopback"},
    "landlock, user": (MEANT | KNOWN | BEYOND_LANDLOCK) - {"use_own_loopback"},
}


@dataclass
class Attempted:
    """What came of all the probes, as they tell it and as it looks from outside."""

    outcomes: dict[str, str]
    before: dict[str, tuple]
    after: dict[str, tuple]
    packets: list[str]
    victim_runs: bool
    left_in_workspace: set[str]


@pytest.fixture(scope="module")
def attempted() -> Iterator[dict[str, Attempted]]:
    with ExitStack() as stack:
        yield _Attempts(stack)


class _Attempts(dict[str, Attempted]):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, variant: str) -> Attempted:
        confinement, uid = confinement_for(variant)
        at = Surroundings(self._stack.enter_context(folder_on_disk()), uid)
        self._stack.callback(at.close)
        for name in escape_probes.PROBES:
            (at.outside / name).write_text("original")
            os.chown(at.outside / name, uid, uid)
        os.link(at.outside / "write_through_existing_hard_link", at.ws / "existing_hard_link")
        script = at.ws / "escape_probes.py"
        script.write_bytes(Path(escape_probes.__file__).read_bytes())
        before = picture(at.outside)
        inherited = os.open(at.outside / "unlink", os.O_RDWR)
        os.set_inheritable(inherited, True)
        try:
            argv = [str(python_of(uid)), "-I", "-S", str(script), json.dumps(at.listen())]
            done = run(confinement, at.bounds, argv, uid=uid)
        finally:
            os.close(inherited)
        time.sleep(0.05)  # a listener counts a moment after the sender has gone on
        assert done.returncode == 0, done.stderr
        self[variant] = Attempted(
            outcomes=json.loads(done.stdout),
            before=before,
            after=picture(at.outside),
            packets=at.packets,
            victim_runs=at.victim.poll() is None,
            left_in_workspace=set(picture(at.ws)),
        )
        return self[variant]


@pytest.mark.slow
@each_row("probe", list(escape_probes.PROBES))
@pytest.mark.parametrize("variant", list(OPEN))
def test_a_command_can_do_what_is_meant_and_nothing_else(
    attempted: dict[str, Attempted], variant: str, probe: str
) -> None:
    outcome = attempted[variant].outcomes[probe]
    assert (outcome == "open") == (probe in OPEN[variant]), outcome


@pytest.mark.parametrize("probe", list(escape_probes.PROBES))
def test_the_attempts_succeed_where_nothing_confines_them(attempted: dict[str, Attempted], probe: str) -> None:
    """Else it would prove nothing that they fail in a sandbox."""
    outcome = attempted["nothing, root"].outcomes[probe]
    if any(reason in outcome for reason in ("not permitted", "not supported", "not implemented", "No such")):
        pytest.skip(f"this machine refuses it to everybody: {outcome}")
    assert (outcome == "open") == (probe != "use_inherited_descriptor"), outcome  # never passed on, confined or not


@pytest.mark.parametrize("variant", list(OPEN))
def test_nothing_outside_has_changed(attempted: dict[str, Attempted], variant: str) -> None:
    done = attempted[variant]
    changed = {name for name in done.before.keys() | done.after.keys() if done.before.get(name) != done.after.get(name)}
    assert changed == CHANGES_ITS_FILE_OUTSIDE & OPEN[variant]


@pytest.mark.parametrize("variant", list(OPEN))
def test_no_packet_arrives(attempted: dict[str, Attempted], variant: str) -> None:
    beyond = {"home", "tmp"} if variant.startswith("landlock") else set()
    assert set(attempted[variant].packets) == beyond


@pytest.mark.parametrize("variant", list(OPEN))
def test_other_processes_run_on(attempted: dict[str, Attempted], variant: str) -> None:
    assert attempted[variant].victim_runs


@pytest.mark.parametrize("variant", [variant for variant in OPEN if variant.startswith("bubblewrap")])
def test_what_the_attempts_were_mounted_on_is_gone(attempted: dict[str, Attempted], variant: str) -> None:
    assert not attempted[variant].left_in_workspace & {
        ".agentcli", ".mcp.json", ".git/commondir", ".git/config.worktree", ".git/modules/libs/sub/commondir"
    }  # fmt: skip


def test_landlock_says_what_it_does_not_keep(tmp_path: Path) -> None:
    confinement, _ = confinement_for("landlock, root" if os.getuid() == 0 else "landlock, user")
    bounds = Bounds(profile="workspace-write", roots=(tmp_path,), home=tmp_path)
    told = " ".join((confinement.weakness, *confinement.limits(bounds)))
    for word in ("modes", "unix sockets", "leaves behind", "git hooks", "secret files", "no host"):
        assert word in told
