"""Makes the sandbox that the settings describe; imported when a session first uses it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from agentcli.agent.permissions.rules import PathGround, Rules, kept_from_reading
from agentcli.errors import ToolError
from agentcli.infra.sandbox.confinement import Confinement
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits
from agentcli.safety.paths.secret import SECRET_HOME_PATHS
from agentcli.settings.files import make_private_folder
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of, project_root
from agentcli.settings.structs import SandboxSettings
from agentcli.tools.command import Profile


def make_sandbox(
    config: Config,
    folders: tuple[Path, ...],
    *,
    session_id: str,
    rules: Rules,
    profile: Profile | None,
    programs: Callable[[Sequence[Path]], Sequence[Path]] = lambda roots: (),
) -> LocalSandbox:
    """The sandbox of a session in `folders`, the working directory first; `profile` replaces that of the settings.

    `programs` gives the files of some folders that run outside of it, and which commands may not change.
    """
    home, settings = home_of(config.environment), config.settings.sandbox
    state, cache = config.paths.state, config.paths.cache
    limits = CommandLimits(
        profile or settings.profile,
        home,
        masked=(
            *(_absolute(name, config.cwd, home) for name in settings.masked),
            *config.paths.secret,
            *_secrets_moved(config.environment),
        ),
        writable=tuple(_absolute(name, config.cwd, home) for name in settings.writable),
        hosts=settings.hosts,
        environment=settings.environment,
        tries=state / "tries",
        aside=state / "put_aside",
        mount_notes=state / "mount_points",
        own_folders=(config.paths.config, state),
        programs=programs,
        cache=cache / "sandbox" / hashlib.sha256(os.fsencode(project_root(config.cwd))).hexdigest()[:16],
    )
    return LocalSandbox(
        folders,
        environment=config.environment,
        job_folder=state / "jobs" / session_id,
        session_id=session_id,
        limits=limits,
        choose=partial(_confinement, settings, state),
        denied=partial(kept_from_reading, rules, PathGround(config.cwd, project_root(config.cwd), home)),
    )


def _confinement(settings: SandboxSettings, state: Path) -> Confinement:
    """What confines commands here; probing takes some milliseconds. Raises `ToolError`."""
    kind = settings.kind
    if kind == "docker":
        from agentcli.infra.sandbox.backends.docker import Docker

        return Docker(settings.docker_image)
    from agentcli.infra.sandbox.backends import choosing as confinement

    tmp = state / "tmp"
    try:
        make_private_folder(tmp)
    except OSError as error:
        message = f"Commands cannot be confined: {tmp} could not be made ({error.strerror})."
        raise ToolError(message) from error
    kinds = confinement.KINDS.get(sys.platform, ()) if kind == "auto" else (kind,)
    chosen: Confinement = confinement.choose_confinement(tmp=tmp, kinds=kinds)
    return chosen


def _secrets_moved(environment: Mapping[str, str]) -> Iterator[Path]:
    """The secret files of a home that XDG variables put elsewhere."""
    for variable, usual in {"XDG_CONFIG_HOME": ".config/", "XDG_DATA_HOME": ".local/share/"}.items():
        if (folder := environment.get(variable, "")).startswith("/"):
            yield from (Path(folder, path.removeprefix(usual)) for path in SECRET_HOME_PATHS if path.startswith(usual))


def _absolute(name: str, cwd: Path, home: Path) -> Path:
    return home / name[2:] if name.startswith("~/") else cwd / name
