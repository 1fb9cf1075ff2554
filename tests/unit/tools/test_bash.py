"""bash: what a command said, and beside it only what is out of the ordinary."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from agentcli.tools.observation import PAGE_BYTES
from tests.unit.tools.bench import Bench, is_alive, until


def test_the_output_is_the_whole_answer_of_an_ordinary_command(bench: Bench) -> None:
    output = bench.call("bash", command="echo out; echo err >&2")
    assert output.content == "out\nerr"
    assert output.structured == {"exit_code": 0, "output": "out\nerr\n", "timed_out": False, "cwd": str(bench.ws)}
    assert not output.is_error


def test_a_silent_command_answers_nothing(bench: Bench) -> None:
    assert bench.text("bash", command="true") == ""


def test_an_exit_code_other_than_zero_is_reported_and_an_error(bench: Bench) -> None:
    output = bench.call("bash", command="echo no; exit 3")
    assert output.content == "no\n[exit code 3]"
    assert output.structured["exit_code"] == 3
    assert output.is_error


def test_a_command_that_a_signal_ended_says_so(bench: Bench) -> None:
    output = bench.call("bash", command="kill -KILL $$")
    assert output.content == "[ended by signal 9]"
    assert output.is_error


@pytest.mark.parametrize("command", ["", "  \n", "echo a\0b"])
def test_an_unknown_command_is_an_error(bench: Bench, command: str) -> None:
    assert bench.fails("bash", command=command).kind == "invalid_parameters"


def test_cd_lasts_and_the_directory_is_reported_only_when_it_changed(bench: Bench) -> None:
    bench.put("src/deep/a")
    assert bench.text("bash", command="cd src") == "[now in src]"
    assert bench.text("bash", command="pwd") == str(bench.ws / "src")
    assert bench.text("bash", command="cd deep && echo there") == "there\n[now in src/deep]"
    assert bench.text("bash", command="cd ../..") == "[now in .]"
    assert bench.call("bash", command="true").structured["cwd"] == str(bench.ws)


def test_file_paths_stay_relative_to_the_working_directory_when_the_shell_moves(bench: Bench) -> None:
    bench.put("src/a", "in src\n")
    bench.put("a", "above\n")
    bench.call("bash", command="cd src")
    assert bench.text("file_read", path="a") == "1\tabove"


def test_a_shell_that_leaves_the_workspace_is_moved_back(bench: Bench) -> None:
    bench.put("src/a")
    bench.call("bash", command="cd src")
    output = bench.call("bash", command="cd / && pwd")
    assert output.content == "/\n[/ is outside the workspace: back in src]"
    assert output.structured["cwd"] == str(bench.ws / "src")
    assert bench.text("bash", command="pwd") == str(bench.ws / "src")


def test_a_directory_that_is_gone_is_reported_and_the_shell_starts_at_the_root(bench: Bench) -> None:
    bench.call("bash", command="mkdir d && cd d")
    bench.call("bash", command="rmdir ../d")
    output = bench.call("bash", command="pwd")
    assert output.content == f"{bench.ws}\n[d is gone: started in .]"
    bench.put("d/a")
    assert bench.text("bash", command="pwd") == str(bench.ws)


def test_cwd_holds_for_one_call(bench: Bench) -> None:
    bench.put("src/a")
    output = bench.call("bash", command="pwd; cd ..", cwd="src")
    assert output.content == str(bench.ws / "src")
    assert bench.text("bash", command="pwd") == str(bench.ws)


@pytest.mark.parametrize(("cwd", "kind"), [("..", "permission_denied"), ("gone", "not_found"), ("a", "not_found")])
def test_a_cwd_that_cannot_be_is_an_error(bench: Bench, cwd: str, kind: str) -> None:
    bench.put("a")
    assert bench.fails("bash", command="touch ran", cwd=cwd).kind == kind
    assert bench.names() == {"a"}


def test_a_timeout_is_reported_with_the_output_so_far(bench: Bench) -> None:
    output = bench.call("bash", command="echo begin; sleep 60", timeout_ms=200)
    assert output.content == "begin\n[ended after 0.2 s; for a long job set timeout_ms or background]"
    assert output.structured["timed_out"] is True
    assert output.structured["exit_code"] is None
    assert output.is_error


def test_the_input_is_empty(bench: Bench) -> None:
    assert bench.text("bash", command="cat; echo done") == "done"


def test_long_output_keeps_both_ends(bench: Bench) -> None:
    text = bench.text("bash", command="echo begin; seq 20000; echo end")
    assert text.startswith("begin\n1\n")
    assert text.endswith("20000\nend")
    assert len(text) < PAGE_BYTES + 300
    cut = re.search(r"\n\[[\d,]+ characters cut; all of it is in (/\S+)\]\n", text)
    assert cut
    assert bench.text("file_read", path=cut[1], offset=10_001, limit=2).startswith("10001\t10000\n10002\t10001")


def test_brief_output_is_short(bench: Bench) -> None:
    assert len(bench.text("bash", command="seq 20000", output_level="brief")) < 2_100


def test_full_output_is_whole(bench: Bench) -> None:
    assert bench.text("bash", command="seq 20000", output_level="full").splitlines() == [
        str(n) for n in range(1, 20_001)
    ]


@pytest.mark.slow
def test_endless_output_neither_floods_nor_holds_up_anything(bench: Bench) -> None:
    async def longest_wait() -> float:
        call = asyncio.create_task(bench.acall("bash", command="yes", timeout_ms=700))
        waits = [0.0]
        while not call.done():
            started = time.monotonic()
            await asyncio.sleep(0.005)
            waits.append(time.monotonic() - started)
        assert (await call).structured["timed_out"]
        return sorted(waits)[-3]  # a busy machine may hold up one or two by itself

    assert asyncio.run(longest_wait()) < 0.2  # 10 ms on a machine that does nothing else
    assert len(bench.heard) < 40
    assert sum(map(len, bench.heard)) < 300_000
    assert "characters not shown" in "".join(bench.heard)


def test_processes_left_running_are_reported_and_can_be_ended(bench: Bench) -> None:
    async def left_and_ended() -> tuple[str, str]:
        output = await bench.acall("bash", command="sleep 60 & echo done")
        killed = await bench.acall("jobs", action="kill", job_id=output.structured["job_id"])
        return str(output.content), str(killed.content)

    assert asyncio.run(left_and_ended()) == ("done\n[left running in the background: job_1]", "Ended job_1.")


@pytest.mark.parametrize("own", ["trap 'echo mine' EXIT; echo x", "exec echo x", "echo x; kill -KILL $$"])
def test_a_command_that_ends_in_its_own_way_keeps_the_shell_where_it_was(bench: Bench, own: str) -> None:
    bench.put("src/a")
    bench.call("bash", command="cd src")
    assert bench.text("bash", command=f"cd ..; {own}").startswith("x\n" if "mine" in own or "KILL" in own else "x")
    assert bench.text("bash", command="pwd") == str(bench.ws / "src")


def test_no_start_up_file_is_read(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("echo from the file")
    other = Bench(tmp_path, {"BASH_ENV": str(tmp_path / "rc"), "ENV": str(tmp_path / "rc"), "HOME": str(tmp_path)})
    (tmp_path / ".bashrc").write_text("echo from the file")
    assert other.text("bash", command="echo only this") == "only this"
    asyncio.run(other.sandbox.aclose())


def test_output_is_emitted_while_the_command_runs(bench: Bench) -> None:
    async def first_output_came_before_the_end() -> bool:
        call = asyncio.create_task(bench.acall("bash", command="echo first; sleep 0.3; echo second"))
        heard_early = await until(lambda: bench.heard == ["first\n"]) and not call.done()
        await call
        return heard_early

    assert asyncio.run(first_output_came_before_the_end())
    assert "".join(bench.heard) == "first\nsecond\n"


def test_a_background_job_answers_at_once_and_its_output_can_be_read(bench: Bench) -> None:
    async def started_and_closed() -> tuple[float, str, int]:
        started = time.monotonic()
        output = await bench.acall("bash", command="echo working; sleep 60", background=True)
        took = time.monotonic() - started
        job = output.structured
        assert job["job_id"] in str(output.content)
        assert job["output_file"] in str(output.content)
        assert await until(lambda: Path(job["output_file"]).read_text() == "working\n")
        read = await bench.acall("file_read", path=job["output_file"])
        assert is_alive(job["pid"])
        await bench.sandbox.aclose()
        return took, str(read.content), job["pid"]

    took, text, pid = asyncio.run(started_and_closed())
    assert took < 20  # of the 60 s that the command takes
    assert text == "1\tworking"
    assert not is_alive(pid)


def test_a_job_s_output_may_be_read_and_not_written(bench: Bench) -> None:
    job = bench.call("bash", command="echo x", background=True).structured
    assert bench.fails("file_write", path=job["output_file"], content="y").kind == "permission_denied"


def test_a_job_starts_where_the_shell_stands(bench: Bench) -> None:
    bench.put("src/a")
    bench.call("bash", command="cd src")
    job = bench.call("bash", command="pwd", background=True).structured
    assert asyncio.run(until(lambda: Path(job["output_file"]).read_text() == f"{bench.ws}/src\n"))


def test_a_cancelled_call_ends_its_processes(bench: Bench) -> None:
    async def cancelled() -> int:
        call = asyncio.create_task(bench.acall("bash", command="sleep 60 & echo $! > pid; echo begun; wait"))
        assert await until(lambda: bench.heard == ["begun\n"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return int((bench.ws / "pid").read_text())

    assert not is_alive(asyncio.run(cancelled()))


def test_directories_with_names_that_are_not_utf_8_can_be_sent(bench: Bench) -> None:
    output = bench.call("bash", command=r"mkdir $'caf\xe9' && cd caf*")
    assert output.content == r"[now in $'caf\xe9']"
    assert output.structured["cwd"] == rf"$'{bench.ws}/caf\xe9'"
    assert bench.text("bash", command="touch here; ls") == "here"


def test_the_preview_of_a_command_is_the_command(bench: Bench) -> None:
    assert bench.preview("bash", command="rm -r build", timeout_ms=5) == "rm -r build"


def test_a_tool_that_only_has_a_command_among_its_arguments_shows_all_of_them(bench: Bench) -> None:
    assert '"content": "what is kept"' in bench.preview("memory", command="write", path="a", content="what is kept")


def test_a_note_names_files_that_a_command_changed_and_others_run(bench: Bench) -> None:
    bench.sandbox_profile("workspace-write")
    bench.put(".githooks/pre-commit", "exit\n")
    note = bench.text("bash", command="echo echo hi >> .githooks/pre-commit")
    assert note.startswith("[it made or changed .githooks, which other programs run")
