"""Finds the remotes that a git command connects to, from git's settings: hosts, or local folders."""

import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from agentcli.safety.commands.arguments import read_arguments, read_table
from agentcli.safety.commands.reader.syntax import Field, State, normal
from agentcli.safety.commands.reads import read_git_call
from agentcli.safety.commands.records import Effects, GitSetup, WorkspaceView
from agentcli.safety.hosts import WEB_PORTS, read_host, split_port

_URL = re.compile(r"(?:https?|ssh|git\+ssh|ssh\+git)://(?:[^/?#]*@)?(?P<address>[^/?#@]*)(?:/.*)?", re.DOTALL)
# `user@host:path`, but not `ext::…`, which names a program.
_SSH_PATH = re.compile(r"(?:[^/:]*@)?(?P<address>[^/:@]+):(?!:|//).*", re.DOTALL)


def with_remotes(effects: Effects, words: Sequence[Field], state: State, workspace: WorkspaceView) -> Effects:
    """Return the effects of a call of git with its remotes as the hosts; unchanged if a remote is not certain.

    `git fetch` names no host, so its `effects` say `UNKNOWN`. With the remotes that git's settings show, rules and
    questions can be about `github.com` instead.
    """
    call = read_git_call(words[1:])
    for option_value in call.folders:
        state = state.entering(option_value)
    if call.problem or not call.words or not state.folders:
        return effects
    name = call.words[0].text
    combined = replace(effects, hosts=())  # without the `UNKNOWN` for the remotes
    for folder in state.folders:  # git may run in any of these: after `cd a || cd b` there are two
        setup = workspace.git_setup(folder)
        remotes = _find_remotes(call.words, setup) if setup is not None else []
        if setup is None or not remotes:
            return effects
        base = folder if name == "clone" else setup.top or folder  # in a repository, git works in its top folder
        for url in [url for remote in remotes for url in _urls_of(remote, setup, name)]:
            effect = _effect_of(url, base, is_push=name == "push")
            if effect is None:
                return effects
            combined |= effect
    return combined


def _find_remotes(words: Sequence[Field], setup: GitSetup) -> list[str]:
    """Return the remotes of a subcommand, by name or address; none if it may connect to others."""
    name, words = words[0].text, words[1:]
    if name == "remote" and words:
        name, words = f"remote {words[0].text}", words[1:]
    row = read_table("git_remotes")["remotes"].get(name)
    read = read_arguments(words, row) if row else None
    # With an option that is not in the table, git may connect to another remote.
    if read is None or read.problem or any(not each.is_known or each.is_glob for each in read.operands):
        return []
    operands = [field.text for field in read.operands]
    known = [remote for remote, _ in setup.sections("remote", "url")]
    if name == "remote update" and not operands and not setup.values("remotes.default"):  # it updates all remotes
        return known
    if name.startswith("remote "):  # an operand that is no remote may name a group of them
        return operands if set(operands) <= set(known) else []
    if name in ("fetch", "pull") and "--all" in read.option_names:
        return known
    # One remote: the first operand, else the one that is set for pushes or for the branch, else `origin`.
    of_branch = f"branch.{setup.branch}"
    keys = (f"{of_branch}.pushremote", "remote.pushdefault") if name == "push" else ()
    defaults = [values[-1] for key in (*keys, f"{of_branch}.remote") if (values := setup.values(key))]
    remote = (*operands, *defaults, "origin")[0]
    # A name that is not in the settings may be a remote of the old form, in a file below .git.
    return [remote] if name == "clone" or remote in known or "/" in remote else []


def _urls_of(remote: str, setup: GitSetup, subcommand: str) -> list[str]:
    """Return the addresses of a remote, with the replacements of `url.*.insteadOf`. Git fetches from the first one."""
    is_push, urls = subcommand == "push", []
    own_urls = [] if subcommand == "clone" else setup.values(f"remote.{remote}.url")
    push_urls = setup.values(f"remote.{remote}.pushurl") if is_push and own_urls else []
    # The second key counts only if no setting with the first one applies to the address.
    keys = ["pushinsteadof", "insteadof"] if is_push and not push_urls else ["insteadof"]
    for url in push_urls or (own_urls if is_push else own_urls[:1]) or [remote]:
        by_key = ([pair for pair in setup.sections("url", key) if url.startswith(pair[1])] for key in keys)
        replacements = next(filter(None, by_key), [("", "")])
        new, old = max(replacements, key=lambda pair: len(pair[1]))  # git takes the longest
        urls.append(new + url.removeprefix(old))
    return urls


def _effect_of(url: str, base: str, *, is_push: bool) -> Effects | None:
    """Return the effect of connecting to an address; None if it makes git run a program, or is not clear."""
    if url.startswith(("/", "./", "../", "file:///")):
        folder = normal(posixpath.join(base, url.removeprefix("file://")))
        return Effects(reads=(folder,), writes=(folder,) if is_push else (), remotes=(folder,))
    if not (found := _URL.fullmatch(url) or _SSH_PATH.fullmatch(url)):
        return None
    is_web = url.startswith(("http://", "https://"))
    with suppress(ValueError):  # of a host or port that is not valid
        host, port = split_port(found["address"], default=None)
        host = read_host(host)
        host = f"[{host}]" if ":" in host else host  # IPv6
        named = host if port is None or port in WEB_PORTS else f"{host}:{port}"  # as grants of hosts name it
        return Effects(hosts=(named,), remotes=() if is_web else (f"ssh://{named}",))  # the sandbox blocks ssh
    return None
