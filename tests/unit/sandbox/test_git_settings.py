"""Changes of a git configuration that leave it what it was to a program: new remotes, and what `git push -u` writes."""

from __future__ import annotations

import pytest

from agentcli.infra.sandbox.git_config import adds_only_remotes

BEFORE = b'[core]\n\tbare = false\n[remote "origin"]\n\turl = https://example.org/x.git\n'


@pytest.mark.parametrize(
    "added",
    [
        '[remote "origin.pushurl\0"]\n url = x@y:repo',
        '[remote "new\0"]\n url = https://example.org/x.git',
        '[remote "new"]\n url = "x@y:; touch ran"',
        '[remote "new"]\n url = "https://example.org/$(touch ran)"',
        '[remote "new"]\n url = ssh://-oProxyCommand=touch/x',
        '[remote "new"]\n url = x@-oProxyCommand=touch:x',
        '[remote "new"]\n url = x@y::touch',
        '[remote "new"]\n url = ../evil.git',
        '[remote "new"]\n url = file:///tmp/evil.git',
        '[remote "new"]\n url = ext::sh -c evil',
        '[remote "-new"]\n url = https://example.org/x.git',
        '[remote "a b"]\n url = https://example.org/x.git',
        '[remote "new"]\n url = https://example.org/x.git\n fetch = +refs/*:refs/*',
        '[remote "evil/x"]\n fetch = +refs/heads/*:refs/remotes/x/*\n[branch "main"]\n remote = evil/x',
        '[branch "$(touch ran)"]\n remote = .',
        '[remote "origin"]\n url = https://example.com/evil.git',
        "[core]\n hooksPath = evil",
    ],
)
def test_what_git_or_a_shell_may_take_for_more_is_a_change(added: str) -> None:
    assert not adds_only_remotes(BEFORE, BEFORE + added.encode() + b"\n")
    assert not adds_only_remotes(BEFORE, BEFORE.replace(b"example.org", b"example.com"))


@pytest.mark.parametrize("url", ["https://u:p@example.org:8443/a/~b/x.git", "git@example.org:a/x.git", "ssh://git@h/x"])
def test_a_new_remote_and_what_git_push_writes_are_none(url: str) -> None:
    fetch = "+refs/heads/*:refs/remotes/new/*"
    added = f'[remote "new"]\n url = {url}\n fetch = {fetch}\n[branch "a/b#1"]\n remote = new\n merge = refs/heads/x\n'
    assert adds_only_remotes(BEFORE, BEFORE + added.encode())
