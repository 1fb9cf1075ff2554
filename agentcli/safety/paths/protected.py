"""Recognizes files and folders that programs run or obey unasked: hooks, shell profiles, editor settings."""

from __future__ import annotations

from pathlib import PurePath

from agentcli.safety.paths.folding import fold_name, folded_parts, holds, is_short_for

# Folders of a workspace whose contents programs run or obey unasked. An edit there needs approval.
PROTECTED_FOLDERS = tuple(
    """
    .git .hg .svn .agentcli .vscode .idea .zed .fleet .cursor .windsurf .claude .codex .gemini .opencode .kiro .roo
    .continue .junie .amazonq .husky .direnv .ssh .gnupg
    """.split()
)
# A change to one of these is shown to the person, but not blocked: they are part of a project like its build files,
# `git checkout` writes them, and what they name runs only after the person commits or allows it.
REVIEWED_FILES = tuple(
    """
    .gitattributes .envrc .pre-commit-config.yaml .pre-commit-config.yml .lefthook.yml lefthook.yml .overcommit.yml
    """.split()
)
PROTECTED_FILES = REVIEWED_FILES + tuple(
    """
    .gitconfig .mcp.json .claude.json .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc
    .zshenv .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .inputrc .xprofile .xinitrc .xsession .xsessionrc
    .tmux.conf .screenrc .vimrc .gvimrc .exrc .nvimrc .nvim.lua .emacs .dir-locals.el .gdbinit .lldbinit .pdbrc .irbrc
    .curlrc .wgetrc .hgrc
    """.split()
)
PROTECTED_NAMES = PROTECTED_FOLDERS + PROTECTED_FILES
# Sandboxed commands can neither write nor create these; in `.git` only what git runs or obeys: commits write the rest.
READ_ONLY_NAMES = tuple(name for name in PROTECTED_NAMES if name not in REVIEWED_FILES)
# In a repository's own folder.
PROTECTED_GIT_PATHS = ("hooks", "config", "config.worktree", "info", "modules", "worktrees")
# In a home: run at boot, at login, or by a program in daily use.
PROTECTED_HOME_PATHS = tuple(
    """
    .config/fish .config/autostart .config/systemd .config/environment.d .config/git .config/nvim .vim .emacs.d
    .local/bin .local/lib .local/share/systemd .local/share/agentcli .cargo/bin .cargo/env .nvm Library/LaunchAgents
    """.split()
)


def is_protected(path: PurePath) -> bool:
    """True if programs would run or obey what is written to `path`, which is relative to the workspace."""
    parts = folded_parts(path)
    for position, part in enumerate(parts):
        if part in PROTECTED_NAMES or is_short_for(part, PROTECTED_NAMES):
            return True
        # A bare repository may have any name; by convention it ends in `.git`.
        if part.endswith(".git") and parts[position + 1 : position + 2] and parts[position + 1] in PROTECTED_GIT_PATHS:
            return True
    return holds(PROTECTED_HOME_PATHS, parts, starts=range(len(parts)))


def is_reviewed(path: PurePath) -> bool:
    """True if `path`, relative to the workspace, is protected only because it is one of `REVIEWED_FILES`."""
    return fold_name(path.name) in REVIEWED_FILES and not is_protected(path.parent)
