"""Starts the program: records signals and answers `--version` before anything else is imported."""

import os
import sys
from _signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal, signal  # `signal` itself imports enum: 4 ms more


def main() -> None:
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        _restart_in_utf8_mode()
    signals = _note_signals()
    if sys.argv[1:] in (["--version"], ["-v"]):
        from agentcli import __version__

        try:
            os.write(1, f"agentcli {__version__}\n".encode())  # no buffer that would be flushed again at the end
            return
        except OSError:  # `run` below fails in the same way, and reports it
            pass
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder that Python adds: a `queue.py` of the project there must not be imported
    import gc

    gc.disable()  # imports create no garbage; the front ends turn it on again
    from agentcli.cli.main import run

    code = run(sys.argv[1:], signals)
    for number in (SIGINT, SIGTERM, SIGHUP):
        signal(number, SIG_IGN)  # one that comes while Python ends would change the exit code
    gc.freeze()  # as it ends, Python would look through all objects for garbage, which takes 4 ms
    sys.exit(code)


def _restart_in_utf8_mode() -> None:
    """Restart Python in UTF-8 mode: else names of files and other programs' output are decoded by the locale.

    The terminal keeps the locale's charset, which `locale_encoding` in cli/output.py reads from the added option.
    """
    options = ["-X", "utf8", "-X", f"agentcli_locale={sys.getfilesystemencoding()}"]
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606  # no shell


def _note_signals() -> list[int]:
    """Record signals until a handler takes over: one in the middle of an import would end in a traceback."""
    signals: list[int] = []
    for number in (SIGINT, SIGTERM, SIGHUP):
        if number != SIGHUP or getsignal(number) != SIG_IGN:  # nohup lets SIGHUP be ignored
            signal(number, lambda number, frame: signals.append(number))
    return signals


if __name__ == "__main__":
    main()
