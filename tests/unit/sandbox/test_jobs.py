"""jobs: what goes on in the background, what it says, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from agentcli.infra.sandbox.processes import keeper
from agentcli.infra.sandbox.processes.keeper_client import Process
from agentcli.tools.observation import PAGE_BYTES
from agentcli.tools.sandbox import Command
from tests.unit.tools.bench import Bench, until


async def start(bench: Bench, command: str, **given: object) -> str:
    return str((await bench.acall("bash", command=command, background=True, **given)).structured["job_id"])


async def text(bench: Bench, action: str, job: str = "") -> str:
    return str((await bench.acall("jobs", action=action, **({"job_id": job} if job else {}))).content)


async def all_ended(bench: Bench) -> bool:
    return await until(lambda: not any(job.is_running for job in bench.sandbox.jobs.list()), 5)


def exit_code(bench: Bench) -> int | None:
    outcome = bench.sandbox.jobs.list()[0].outcome
    return outcome.exit_code if outcome else None


async def test_jobs_are_listed_with_how_they_stand(bench: Bench) -> None:
    assert await text(bench, "list") == "No command runs in the background."
    for command in ("echo hello; exit 3", "kill -TERM $$", "true"):
        await start(bench, command)
    assert await all_ended(bench)
    last = await start(bench, "sleep 60")
    assert (await text(bench, "list")).splitlines() == [
        "job_1: exit code 3: echo hello; exit 3 [6 bytes of new output]",
        "job_2: ended by signal 15: kill -TERM $$",
        "job_3: exit code 0: true",
        "job_4: running: sleep 60",
    ]
    assert await text(bench, "kill", last) == "Ended job_4."
    assert "job_4: ended by signal 15" in await text(bench, "list")
    assert await text(bench, "kill", last) == "job_4 had ended before: ended by signal 15."


async def test_only_what_is_new_is_read(bench: Bench) -> None:
    job = await start(bench, "echo one; until [ -e go ]; do sleep 0.02; done; echo two; exit 1")
    assert await until(lambda: bench.sandbox.jobs.list()[0].new_bytes == 4)
    assert await text(bench, "read", job) == "one\n[running]"
    assert await text(bench, "read", job) == "[nothing new]\n[running]"
    bench.put("go")
    assert await all_ended(bench)
    output = await bench.acall("jobs", action="read", job_id=job)
    assert output.content == "two\n[exit code 1]"
    assert output.structured["output"] == "two\n"
    assert output.structured["exit_code"] == 1


async def test_a_word_that_has_come_half_waits_for_its_other_half(bench: Bench) -> None:
    job = await start(bench, r"printf 'a b\xe2\x82'; until [ -e go ]; do sleep 0.02; done; printf '\xacb\xe2'")
    assert await until(lambda: bench.sandbox.jobs.list()[0].new_bytes == 5)
    assert bench.sandbox.jobs.read(job, 100) == "a "
    bench.put("go")
    assert await all_ended(bench)
    assert bench.sandbox.jobs.read(job, 100) == "b€b\ufffd"


async def test_a_command_that_goes_to_the_background_in_mid_word_gives_the_word_with_the_rest(bench: Bench) -> None:
    command, detach = "printf 'key: sk-one'; until [ -e go ]; do sleep 0.02; done; echo -two", asyncio.Event()
    result = await bench.sandbox.run(Command(command, bench.ws), on_output=lambda _: detach.set(), detach=detach)
    assert result.output == "key: "
    bench.put("go")
    assert await all_ended(bench)
    assert result.job is not None
    assert bench.sandbox.jobs.read(result.job.id, 100) == "sk-one-two\n"


async def test_much_new_output_keeps_both_ends_and_says_what_is_missing(bench: Bench) -> None:
    job = await start(bench, "echo begin; seq 200000; echo end")
    assert await all_ended(bench)
    read = await text(bench, "read", job)
    assert read.startswith("begin\n1\n2\n")
    assert read.endswith("\n200000\nend\n[exit code 0]")
    assert len(read) < PAGE_BYTES + 100
    size = (bench.folder / "jobs/job_1.log").stat().st_size
    head, cut, tail = re.split(r"\n\[([\d,]+) bytes cut\]\n", read.removesuffix("[exit code 0]"))
    assert len(head) + int(cut.replace(",", "")) + len(tail) == size
    assert head.endswith("\n")
    assert await text(bench, "read", job) == "[nothing new]\n[exit code 0]"


@pytest.mark.parametrize("most", range(40, 60))
async def test_a_cut_is_never_inside_a_character(bench: Bench, most: int) -> None:
    job = await start(bench, "for n in $(seq 100); do printf '€ä'; done")
    assert await all_ended(bench)
    read = bench.sandbox.jobs.read(job, most)
    assert "\ufffd" not in read
    cut = int(read.partition("[")[2].partition(" bytes")[0])
    kept = read.replace(f"\n[{cut} bytes cut]\n", "")
    assert len(kept.encode()) + cut == 500


async def test_a_job_has_a_time_limit_of_its_own(bench: Bench) -> None:
    await start(bench, "echo begun; sleep 60", timeout_ms=300)
    await start(bench, "sleep 60")
    assert await until(lambda: not bench.sandbox.jobs.list()[0].is_running, 5)
    assert (await text(bench, "list")).startswith("job_1: ended at its time limit: echo begun; sleep 60")
    assert bench.sandbox.jobs.list()[1].is_running


async def test_a_job_runs_on_while_nobody_looks(bench: Bench) -> None:
    """Its output goes to the file by itself: a loop that is busy, or has ended, does not hold it up."""
    await start(bench, "seq 100000; echo the end")
    ended_by_then = bench.folder / "jobs/job_1.log"
    for _ in range(500):
        if ended_by_then.read_text().endswith("the end\n"):
            break
        os.sched_yield()
        with os.popen("sleep 0.01") as pause:
            pause.read()
    assert ended_by_then.read_text().endswith("100000\nthe end\n")


@pytest.mark.parametrize("action", ["read", "kill"])
def test_a_job_that_does_not_exist_is_reported_with_those_that_are(bench: Bench, action: str) -> None:
    assert bench.fails("jobs", action=action).kind == "invalid_parameters"
    bench.call("bash", command="true", background=True)
    error = bench.fails("jobs", action=action, job_id="job_7")
    assert (error.kind, str(error)) == ("not_found", "There is no job 'job_7'; there is job_1.")


async def test_a_kill_reaches_everything(bench: Bench) -> None:
    job = await start(bench, "setsid -f sh -c 'echo $$ > pid; exec sleep 60'; sleep 60")
    assert await until(lambda: (bench.ws / "pid").exists() and (bench.ws / "pid").read_text())
    pid = int((bench.ws / "pid").read_text())
    await bench.acall("jobs", action="kill", job_id=job)
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Path:
    """A folder on a disk of 100 KB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


async def test_a_full_disk_costs_output_and_not_the_command(full_disk: Path, tmp_path: Path) -> None:
    if os.system(f"mount -t tmpfs -o size=100k none {full_disk} 2>/dev/null"):
        pytest.skip("mounting is not allowed")
    try:
        bench = Bench(tmp_path)
        (tmp_path / "jobs").symlink_to(full_disk)
        (tmp_path / "jobs").exists()
        job = await start(bench, "seq 100000; exit 7")
        assert await all_ended(bench)
        assert exit_code(bench) == 7
        assert bench.sandbox.jobs.read(job, 100).startswith("1\n2\n")
        output = await bench.acall("bash", command="seq 100000; exit 7")
        assert output.structured["exit_code"] == 7
        assert "No space left on device" in str(output.content)
        await bench.sandbox.aclose()
    finally:
        os.system(f"umount {full_disk}")


async def test_an_output_file_has_a_largest_size(bench: Bench) -> None:
    """The file is filled up beforehand with a hole, which takes no room."""
    job = await start(bench, "until [ -e go ]; do sleep 0.02; done; echo no room for this; echo still running; exit 5")
    os.truncate(bench.folder / "jobs/job_1.log", keeper.MAX_OUTPUT_BYTES - 3)
    bench.put("go")
    assert await all_ended(bench)
    assert exit_code(bench) == 5
    assert bench.sandbox.jobs.read(job, 100).endswith("[what came after 1 GB is not kept]\n")
    assert (bench.folder / "jobs/job_1.log").stat().st_size < keeper.MAX_OUTPUT_BYTES + 100


async def test_an_interrupt_ends_the_call_and_its_output_was_heard(bench: Bench) -> None:
    call = asyncio.create_task(bench.acall("bash", command="seq 50000; echo all of it; sleep 60"))
    assert await until(lambda: "all of it" in "".join(bench.heard), 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    heard = "".join(bench.heard)
    assert heard.startswith("1\n2\n")
    assert heard.endswith("50000\nall of it\n")


async def test_an_interrupt_at_the_moment_when_the_last_process_ends_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupt(process: Process) -> None:
        call.cancel()

    monkeypatch.setattr(Process, "wait_until_gone", interrupt)
    call = asyncio.create_task(bench.acall("bash", command="true"))
    with pytest.raises(asyncio.CancelledError):
        await call
