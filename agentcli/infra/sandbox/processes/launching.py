"""Starts shell commands, confined or not, and releases a confinement when nothing of its command is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentcli.infra.sandbox.confinement import Launch, Told
from agentcli.infra.sandbox.processes.keeper_client import Keeper, Process
from agentcli.tools.command import Command, Profile

# How to start some arguments in a folder with descriptors passed on, held to a profile (None: the usual one). The
# context is left after the last of their processes.
Launcher = Callable[[Sequence[str], Path, Sequence[int], Profile | None], AbstractContextManager[Launch]]


@contextmanager
def unconfined(
    argv: Sequence[str], cwd: Path, pass_fds: Sequence[int], profile: Profile | None = None
) -> Iterator[Launch]:
    yield Launch(list(argv), tuple(pass_fds), {})


def shell_argv() -> list[str]:
    """A shell that reads no file of anybody's before the command."""
    bash = shutil.which("bash")
    return [bash, "--noprofile", "--norc", "-c"] if bash else ["/bin/sh", "-c"]


@dataclass(eq=False)
class Running:
    """A command that was started, with what confines it; `refusal` and `told` as in `Launch`."""

    command: str
    process: Process
    confinement: ExitStack
    refusal: str = ""
    told: Told = field(default_factory=Told)

    def is_over(self) -> bool:
        """True if nothing of it is left, as far as is known now."""
        self.process.look()
        if self.process.is_gone:
            self.confinement.close()
        return self.process.is_gone

    async def end(self) -> None:
        """Ends it with everything it has started, within two seconds where the kernel lets us."""
        await self.process.end()
        self.confinement.close()


class Starter:
    """Starts the commands of one session, and knows those that have not ended.

    `environment` is what they see, `own_environment` what the person's own see.
    """

    def __init__(
        self, environment: Mapping[str, str], launch: Launcher, own_environment: Mapping[str, str] | None = None
    ) -> None:
        self._environment = environment
        self._own_environment = environment if own_environment is None else own_environment
        self._launch = launch
        self._keeper = Keeper(environment)
        self._shell = shell_argv()
        self._running: set[Running] = set()

    async def start(
        self,
        command: Command,
        *,
        before: str,
        output: int,
        pass_fds: Sequence[int] = (),
        is_job: bool = False,
        launcher: Launcher | None = None,
    ) -> Running:
        """Run a command with `before` in front of it; the rest as for `Keeper.start`, which says what is raised.

        A job writes to a file and is ended by the keeper when its time is up.
        """
        confined = unconfined if command.is_own else launcher or self._launch
        environment = self._own_environment if command.is_own else self._environment
        with ExitStack() as confinement:
            argv = [*self._shell, before + command.text]
            launch = confinement.enter_context(confined(argv, command.cwd, pass_fds, command.profile))
            process = await self._keeper.start(
                launch.argv,
                cwd=command.cwd,
                environment={**environment, **launch.environment},
                output=output,
                pass_fds=launch.pass_fds,
                keeps_output=is_job,
                time_limit_s=command.timeout_s if is_job else None,
                bounded_by=launch.bounded_by,
                launcher=launch.launcher,
                journal=launch.journal,
                terminal=command.terminal,
            )
            running = Running(command.text, process, confinement.pop_all(), launch.refusal, launch.told)
        self._running = {other for other in self._running if not other.is_over()} | {running}
        return running

    def still_running(self) -> list[Running]:
        return [running for running in self._running if not running.is_over()]

    async def aclose(self) -> None:
        await self._keeper.aclose()
