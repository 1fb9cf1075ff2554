"""Lists the programs that act beyond the workspace: on the machine, on other machines, on what the network gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from agentcli.safety.commands.reader.syntax import Field

# Act on the machine or on others, whatever their arguments.
_ALWAYS = frozenset(
    (
        # other users, the system, its services, devices and packages
        "sudo doas su pkexec run0 runuser chroot nsenter unshare mount umount swapon swapoff insmod modprobe rmmod "
        "sysctl systemctl service initctl launchctl shutdown reboot halt poweroff init telinit crontab at batch "
        "useradd userdel usermod groupadd groupdel adduser deluser passwd chpasswd chsh visudo hostnamectl timedatectl "
        "hwclock iptables nft ufw ifconfig ip route nmcli fdisk sfdisk sgdisk gdisk parted wipefs mkswap cryptsetup "
        "losetup apt apt-get aptitude dpkg dnf yum rpm zypper pacman apk snap flatpak brew port nix nix-env "
        "softwareupdate defaults diskutil dmesg journalctl loginctl killall pkill kill killall5 gdb strace ltrace "
        # screens, clipboards, keyrings
        "xclip xsel pbcopy pbpaste wl-copy wl-paste xdotool osascript open xdg-open gpg ssh-add ssh-keygen security "
        # other machines
        "curl wget http https xh aria2c ssh scp sftp rsync ftp lftp telnet nc ncat netcat socat ping ping6 traceroute "
        "dig host nslookup whois nmap mail sendmail mutt rclone s3cmd redis-cli psql mysql mongosh mongo sqlcmd "
        # containers, clouds, forges
        "docker podman nerdctl docker-compose kubectl helm oc k9s minikube kind terraform tofu pulumi ansible "
        "ansible-playbook vagrant aws gcloud gsutil az doctl heroku flyctl fly vercel netlify wrangler firebase "
        "supabase gh glab hub twine"
    ).split()
)
_FETCH = "add ci create dlx i in install install-test it init outdated update up upgrade x"
_PUBLISH = "publish login logout adduser owner token unpublish deprecate dist-tag access whoami"
# Of these only the subcommands that fetch or send something.
_SUBCOMMANDS = {
    "git": "push fetch pull clone ls-remote submodule send-email request-pull remote-https lfs svn p4",
    "npm": f"{_FETCH} {_PUBLISH} exec audit view info search",
    "pnpm": f"{_FETCH} {_PUBLISH} fetch import audit",
    "yarn": f"{_FETCH} npm info audit",
    "bun": f"{_FETCH} {_PUBLISH}",
    "deno": "add install cache publish upgrade",
    "pip": "install download wheel search index",
    "pip3": "install download wheel search index",
    "uv": "add sync lock pip tool python publish self remove",
    "poetry": "add install update lock publish self",
    "pdm": "add install update sync lock publish",
    "pipenv": "install update sync lock",
    "conda": "install create update search env upgrade",
    "mamba": "install create update search env upgrade",
    "cargo": "install add fetch update publish login search yank owner",
    "go": "get install download",
    "gem": "install update push fetch",
    "bundle": "install update add outdated",
    "composer": "install update require create-project global",
    "dotnet": "restore add tool nuget",
    "rustup": "install update toolchain component target self default",
    "mix": "deps.get hex.publish archive.install",
    "swift": "package",
    "luarocks": "install upload",
    "hg": "push pull clone incoming outgoing",
    "svn": "checkout co update up commit ci",
}
_RUNNERS = frozenset("npx bunx pnpx uvx pipx".split())  # fetch what they are to run

# Tools that projects install for themselves: npx fetches one only where it is missing, which a try does not let it do.
_PROJECT_TOOLS = frozenset(
    "ava babel biome c8 eslint esbuild jest knip mocha nyc prettier rollup stylelint svelte-check tap ts-node tsc tsx "
    "typedoc vite vitest vue-tsc webpack".split()
)
_NPX_OPTIONS = frozenset("-y --yes --no --no-install --offline --prefer-offline --quiet -q --".split())

# Where installers fetch from unless they are told otherwise.
_REGISTRIES = {
    **dict.fromkeys("npm npx pnpm pnpx bun bunx".split(), ("registry.npmjs.org",)),
    "yarn": ("registry.yarnpkg.com", "registry.npmjs.org"),
    **dict.fromkeys("pip pip3 uv uvx pipx poetry pdm pipenv".split(), ("pypi.org", "files.pythonhosted.org")),
    "cargo": ("index.crates.io", "static.crates.io"),
    "go": ("proxy.golang.org", "sum.golang.org"),
    "gem": ("rubygems.org", "index.rubygems.org"),
    "bundle": ("rubygems.org", "index.rubygems.org"),
    "composer": ("repo.packagist.org",),
}


# Options before a subcommand that take the next word.
_WITH_VALUE = frozenset("-C -c --git-dir --work-tree --prefix --cwd --dir --directory --project --config".split())


def beyond_workspace(fields: Sequence[Field]) -> str:
    """The reason to ask before such a command runs, or an empty string."""
    name, subcommand = _called(fields)
    if name == "parallel":
        if any(field.text.startswith(("-S", "--sshlogin")) for field in fields):
            return "parallel runs on other machines"
        rest = [*itertools.dropwhile(lambda field: field.text.startswith("-"), fields[1:])]
        return beyond_workspace(rest) if rest else ""
    if name in _ALWAYS:
        return f"{name} acts beyond the workspace"
    if {"-g", "--global", "--system"} & {field.text for field in fields} and (
        name in _REGISTRIES or subcommand == "config"
    ):
        return f"{name} {subcommand} changes what is beyond the workspace"
    if subcommand == "exec" and name in ("pnpm", "yarn"):  # fetch nothing for it
        behind = fields[[field.text for field in fields].index("exec") + 1 :]
        return beyond_workspace(behind) if behind else ""
    if name == "npx" and _runs_project_tool([field.text for field in fields[1:]]):
        return ""
    if name in _RUNNERS:
        return f"{name} fetches what it runs"
    if subcommand in _SUBCOMMANDS.get(name, "").split() or (name == "yarn" and len(fields) == 1):
        return f"{name} {subcommand}".rstrip() + " reaches other machines"
    return ""


def _runs_project_tool(words: Sequence[str]) -> bool:
    """True for the arguments of npx where it runs a tool of the project, or may fetch nothing."""
    tool = next((word for word in words if word not in _NPX_OPTIONS), "")
    options = words[: words.index(tool)] if tool else []
    return tool in _PROJECT_TOOLS or ("--no-install" in options and not tool.startswith("-"))


def registries_of(fields: Sequence[Field]) -> tuple[str, ...]:
    """The hosts that an installer fetches from."""
    name, _ = _called(fields)
    return _REGISTRIES.get(name, ()) if beyond_workspace(fields) else ()


def _called(fields: Sequence[Field]) -> tuple[str, str]:
    """The program and its subcommand; `python -m pip` is `pip`, `go mod download` is `go download`."""
    words = [field.text for field in fields]
    name = words[0].rpartition("/")[2]
    if name.startswith("python") and words[1:2] == ["-m"] and len(words) > 2:
        name, words = words[2], words[2:]
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
    if name == "go" and rest[:1] == ["mod"]:
        rest = rest[1:]
    return name, rest[0] if rest else ""
