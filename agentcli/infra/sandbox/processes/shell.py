"""Runs the shell commands of a session, for a call that waits or as jobs; plans a confinement again if it fails."""

import asyncio
import fcntl
import itertools
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.sandbox.backends.linux import render_mounts
from agentcli.infra.sandbox.confinement import MAX_PLANS, Launch
from agentcli.infra.sandbox.network.relay import RELAY_NAME
from agentcli.infra.sandbox.processes.keeper_client import Keeper, Process, ShellProcess
from agentcli.infra.sandbox.processes.run import Run, start_error
from agentcli.infra.sandbox.processes.spare_shell import MAX_CHARS, SpareShell, start_spare
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import BackgroundJob, Command, CommandResult

# Prepares a command's start from the shell's arguments. Its context is left when all processes have ended.
PrepareLaunch = Callable[[Sequence[str], Command], AbstractContextManager[Launch]]

# The shell reports that it has begun, where it ended and what it left running. It opens the pipe by its path, because a
# command may use every short descriptor. The command follows on the same line, so line numbers in its errors are right.
_BEGUN = "{{ printf . >/dev/fd/{fd}; }} 2>/dev/null; "
# If the shell's parent is the first process of a namespace, all processes in it end with the shell, and are reported
# except zombies and the relay. They are listed twice, so that those which are about to end are left out.
_LEFT = (
    "[ $PPID = 1 ] && set +f && for _i in 1 2; do _l=; for _p in /proc/[0-9]*; do read -r _s <$_p/stat || continue; "
    "_n=${{_s#*\\(}}; _n=${{_n%)*}}; "
    'case "${{_p#/proc/}} ${{_s##*) }}" in "1 "*|"$$ "*|*" Z "*) continue; esac; '
    f"[ \"$_n\" = {RELAY_NAME} ] || {{{{ _l=1; [ $_i = 1 ] || printf '\\''\\0%s'\\'' \"$_n\"; }}}}; done; "
    "[ $_i$_l = 11 ] || break; command sleep .05; done"
)
_REPORT = _BEGUN + "trap '{{ {{ pwd -P; " + _LEFT + "; }} >/dev/fd/{fd}; }} 2>/dev/null' EXIT; "
# A spare shell reads its command before it begins, and runs it as it would run an argument.
_READ = "IFS= read -rd '' _c <&{fd} || exit 0; exec {fd}<&-; SECONDS=0; "
_RUN_READ = 'eval "unset _c; $_c"'
_MAX_ARGUMENT_CHARS = 30_000  # of up to four bytes; Linux takes 128 KiB in one argument


@contextmanager
def unconfined(argv: Sequence[str], command: Command) -> Iterator[Launch]:
    yield Launch(list(argv))


class Shell:
    """Runs commands, confined by `launch`, with files for their output in `folder`; implements `Jobs`.

    Commands that the person typed run in `own_environment`, all others in `environment`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        *,
        launch: PrepareLaunch = unconfined,
        own_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = environment
        self._own_environment = environment if own_environment is None else own_environment
        self._launch = launch
        self._keeper = Keeper(environment)  # the small process that starts the commands
        self._spare: asyncio.Task[SpareShell | None] | None = None  # starts the shell of the next read-only command
        self._has_run_read_only = False  # True once a read-only command has run; the next one starts a spare shell
        self._bash = shutil.which("bash")
        # The shell reads no startup files, neither the person's nor the project's.
        self._argv = [self._bash, "--noprofile", "--norc", "-c"] if self._bash else ["/bin/sh", "-c"]
        self._processes: set[Process] = set()  # of calls and jobs that may still run
        self._folder = folder
        self._jobs: list[Run] = []  # including ended ones

    async def exec(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
        launch: PrepareLaunch | None = None,
        is_job: bool = False,
    ) -> CommandResult:
        """Run a command, confined by `launch` if given; it becomes a job on `detach`, or with `is_job` at once."""
        for _ in range(MAX_PLANS):
            run = await self._begin(command, on_output, launch, is_job=is_job)
            result = await run.result(detach, is_job=is_job)
            if not run.setup_failed:
                return result  # else a path was removed before it was mounted, so the mounts are planned again
        raise ToolError(f"The sandbox could not be set up: {result.output.strip()}", kind="resource_error")

    async def _begin(
        self, command: Command, on_output: Callable[[str], None], override: PrepareLaunch | None, *, is_job: bool
    ) -> Run:
        """Start a command, in the spare shell if that is possible, and prepare the next spare shell."""
        prepare = unconfined if command.profile == "own" else override or self._launch
        is_usual_call = command.profile == "read-only" and override is None and not is_job
        # A spare bash reads its command up to a NUL, which other shells cannot.
        fits_spare = "\0" not in command.text and len(command.text) <= MAX_CHARS and self._bash is not None
        try:
            with ExitStack() as confinement:
                launch = confinement.enter_context(prepare(self._argv, command))
                # Only bubblewrap has mounts. A spare shell saves the time that they take.
                can_use_spare = is_usual_call and fits_spare and launch.mounts != ()
                spare = await self._take_spare() if can_use_spare else None
                reused = spare.run(launch, command) if spare is not None else None
                shell = reused or await self._start_shell(launch, command, is_job=is_job)
                if reused is None:
                    shell.process.confinement = confinement.pop_all()  # to be left when all processes have ended
                # The first read-only command starts no spare shell, because it may be the only one.
                if can_use_spare and self._has_run_read_only and self._spare is None:
                    with suppress(OSError):  # the command is already running, so this failure does not matter
                        # If the command runs in a spare shell, it is in the confinement that was made for that one. The
                        # confinement made above is then free for the next spare shell.
                        launch = launch if reused else confinement.enter_context(prepare(self._argv, command))
                        start = start_spare(launch, command, confinement.pop_all(), self._start_shell)
                        self._spare = asyncio.create_task(start)
                self._has_run_read_only |= can_use_spare
        except (OSError, ValueError) as error:
            raise start_error("the job" if is_job else "the shell", error) from error
        return Run(command, shell, on_output, new_file=self.new_file, on_detached=self._jobs.append)

    async def _take_spare(self) -> SpareShell | None:
        # Two commands may wait here for one shell. The first takes it and may start another; the second waits for that.
        while self._spare is not None and not self._spare.done():
            await asyncio.wait({self._spare})
        task, self._spare = self._spare, None
        return task.result() if task is not None and not task.cancelled() else None

    async def _start_shell(
        self, launch: Launch, command: Command, *, is_job: bool = False, reads_from: int | None = None
    ) -> ShellProcess:
        """Start a shell that runs the command, or a spare one that reads its command from descriptor `reads_from`."""
        report, report_low = os.pipe()
        # The shell writes its report to a high number: commands use those up to 9 (`exec 3>file`), and bash takes free
        # ones from 10 on. Docker passes no descriptor on, so there the report would go to a file that bash had opened.
        report_write = fcntl.fcntl(report_low, fcntl.F_DUPFD_CLOEXEC, 100)
        os.close(report_low)
        output, output_write = os.pipe()
        prologue = (_BEGUN if is_job else _REPORT).format(fd=report_write)  # the script before the command
        if reads_from is None:
            arguments, passed = _script_arguments(self._argv[0], prologue, command.text), [report_write]
        else:  # a spare shell
            arguments, passed = [_READ.format(fd=reads_from) + prologue + _RUN_READ], [report_write, reads_from]
        launch = launch._replace(argv=[*launch.argv, *arguments], pass_fds=(*passed, *launch.pass_fds))
        try:
            with render_mounts(launch) as confined:
                process = await self._keeper.start(
                    confined,
                    cwd=command.cwd,
                    environment=self._own_environment if command.profile == "own" else self._environment,
                    output=output_write,
                    time_limit_s=command.timeout_s if is_job else None,  # `Run` ends a command that a call waits for
                    terminal=command.terminal,
                )
        except BaseException:
            os.close(report)
            os.close(output)
            raise
        finally:
            os.close(report_write)
            os.close(output_write)
        self._processes = {other for other in self._processes if not other.is_gone()} | {process}
        return ShellProcess(process, output, report)

    def new_file(self, name: str) -> Path:
        """Create `NAME_1.log`, or the first free number; a job is named after its file. Raises `OSError`."""
        make_private_folder(self._folder)
        for number in itertools.count(1):
            path = self._folder / f"{name}_{number}.log"
            with suppress(FileExistsError):
                path.touch(0o600, exist_ok=False)
                return path
        raise AssertionError  # `count` never ends

    def list(self) -> Sequence[BackgroundJob]:
        return [run.describe_job() for run in self._jobs]

    def read(self, id: str, max_bytes: int) -> str:
        return self._get(id).read_new(max_bytes)

    async def stop(self, id: str) -> None:
        await self._get(id).process.end()

    async def end_and_forget(self, id: str) -> None:
        run = self._get(id)
        self._jobs.remove(run)
        await run.stop_watching()
        await run.process.end()

    def _get(self, id: str) -> Run:
        for run in self._jobs:
            if run.id == id:
                return run
        known = ", ".join(run.id for run in self._jobs) or "none"
        raise ToolError(f"There is no job {id!r}; there is {known}.", kind="not_found")

    async def aclose(self) -> None:
        for job in self._jobs:
            await job.stop_watching()
        if (spare := await self._take_spare()) is not None:
            spare.end()
        await asyncio.gather(*(process.end() for process in self._processes))
        await self._keeper.aclose()


def _script_arguments(shell: str, prologue: str, text: str) -> list[str]:
    """Return the arguments after `-c`: a script of `prologue` and the command; a long command in parts after it."""
    if len(text) < _MAX_ARGUMENT_CHARS:
        return [prologue + text]
    parts = [text[at : at + _MAX_ARGUMENT_CHARS] for at in range(0, len(text), _MAX_ARGUMENT_CHARS)]
    joined = "".join(f"${{{number}}}" for number in range(1, len(parts) + 1))  # `${1}${2}`
    return [f'{prologue}_c="{joined}"; set --; eval "unset _c; $_c"', shell, *parts]


_POLL_S = 0.25


class DetachHandle(Struct, frozen=True):
    """Lets a dry run go on in the background: its command becomes a job once `wants_detach` is set."""

    wants_detach: asyncio.Event
    report: Callable[[CommandResult], None]  # receives the result of the call, which names the job

    async def wait_for_job(
        self, command: Command, detached: CommandResult, shell: Shell, *, limit_watch: asyncio.Task[str]
    ) -> CommandResult:
        """Report the job that a command became, and return the job's result; `detached` if it exceeds a limit first."""
        assert detached.job is not None
        self.report(detached)
        id = detached.job.id
        try:
            while not limit_watch.done():
                outcome = next(job.outcome for job in shell.list() if job.id == id)
                if outcome is not None:
                    output = await asyncio.to_thread(shell.read, id, command.max_bytes)
                    return replace(
                        detached, output=output, exit_code=outcome.exit_code, timed_out=outcome.timed_out, job=None
                    )
                await asyncio.sleep(_POLL_S)
        except asyncio.CancelledError:
            await asyncio.shield(shell.end_and_forget(id))
            raise
        return detached  # the job is still running


class BackgroundRuns:
    """The dry runs of a session, each in a task of its own, so that it can outlive the call that started it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[CommandResult]] = set()

    async def start(
        self, run: Callable[[DetachHandle | None], Awaitable[CommandResult]], detach: asyncio.Event | None
    ) -> CommandResult:
        """Start the dry run of a command, and return its result once it has ended.

        If it becomes a job first, because `detach` was set or it takes too much, return at once the result that names
        the job. Its field `later` is then the task of the dry run, for the caller to await the final result.
        """
        if detach is None:
            return await run(None)
        result_with_job: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        wants_detach = asyncio.Event()  # not `detach`: the run sets this too, if the command uses too many resources
        waiting = asyncio.ensure_future(detach.wait())
        waiting.add_done_callback(lambda _: wants_detach.set())
        running = asyncio.ensure_future(run(DetachHandle(wants_detach, result_with_job.set_result)))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.wait((running, result_with_job), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the call was interrupted, so nothing of the dry run is kept
            running.cancel()
            await asyncio.wait((running,))
            has_result = not running.cancelled() and running.exception() is None  # it ended before the cancellation
            if has_result and (dry_run := running.result().dry_run) is not None:
                await dry_run.discard()
            raise
        finally:
            waiting.cancel()
        return replace(result_with_job.result(), later=running) if result_with_job.done() else await running

    async def cancel(self) -> None:
        running = [*self._running]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
