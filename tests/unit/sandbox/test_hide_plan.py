"""Which masks and exceptions are mounted, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import HideStep, RealPath, is_real, plan_hiding, resolve_path


def folders(*paths: str) -> list[RealPath]:
    return [RealPath(path, is_folder=True) for path in paths]


@pytest.mark.parametrize(
    ("masked", "shown", "expected"),
    [
        (["/h/.ssh"], [], ["hide folder /h/.ssh"]),
        (["/h/.ssh", "/h/.ssh/keys"], [], ["hide folder /h/.ssh"]),
        (["/h/.ssh"], ["/h/.ssh"], []),
        (["/h/.ssh"], ["/h/.ssh/known"], ["hide around /h/.ssh", "show /h/.ssh/known"]),
        (["/h/.ssh", "/h/.ssh/known/x"], ["/h/.ssh/known"],
         ["hide around /h/.ssh", "show /h/.ssh/known", "hide folder /h/.ssh/known/x"]),
        (["/h/c/gh"], ["/h/c"], ["hide folder /h/c/gh"]),
        (["/h/.ssh"], ["/h/.ssh-other"], ["hide folder /h/.ssh"]),
        ([], ["/h"], []),
    ],
)  # fmt: skip
def test_the_longest_path_counts(masked: list[str], shown: list[str], expected: list[str]) -> None:
    steps = plan_hiding(folders(*masked), folders(*shown))
    assert [f"{step.action} {step.path}" for step in steps] == expected


def test_files_are_hidden_one_by_one() -> None:
    assert plan_hiding([RealPath("/h/.netrc", is_folder=False)], []) == [HideStep("hide", "/h/.netrc")]


def test_a_workspace_inside_stays_reachable() -> None:
    assert plan_hiding(folders("/h"), [], reachable=["/h/ws"]) == [HideStep("hide around", "/h")]


def test_a_place_is_where_the_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert resolve_path(str(tmp_path / "link")) == RealPath(str(tmp_path / "real"), is_folder=True)
    assert resolve_path(str(tmp_path / "missing")) is None
    assert not is_real(str(tmp_path / "link"))
    assert is_real(str(tmp_path / "real"))
