"""Ends a run: one that was asked for JSON ends with a result object, also where no session came to write it."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any

from agentcli.agent.result import result_object, to_json_line
from agentcli.cli.output import WatchedOutput, warn
from agentcli.errors import OUT_OF_MEMORY, AgentcliError, UserError, is_out_of_memory
from agentcli.frontends.printable import printable

log = logging.getLogger(__name__)

USAGE_EXIT = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Sees to it that the last line on stdout is a result: where none was written, `unfinished` makes one."""

    def __init__(self, arguments: Sequence[str], out: WatchedOutput) -> None:
        self.session_id = ""
        self.unfinished: Callable[[], dict[str, Any]] = partial(self._result, "interrupted", "")
        self._out = out
        self.has_answered = False  # True: no more results come
        format = ""  # of the bare arguments, since signals and failures come before they are parsed; the last counts
        for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
            name, is_joined, value = argument.partition("=")
            if name == "--output-format":
                format = value if is_joined else following
        self._is_json = format in ("json", "stream-json")
        self._is_single = format == "json"
        self._is_leaving = False

    def fail(self, error: Exception) -> int:
        """Say what went wrong; gives the exit code. Raises an error of stdout, which can be told nothing."""
        if error is self._out.failure:
            raise error
        code = error.exit_code if isinstance(error, UserError) else 1
        text = str(error)
        if is_out_of_memory(error):  # the log would take more
            text = OUT_OF_MEMORY
        elif not isinstance(error, AgentcliError):
            log.error("the run failed", exc_info=error)
            text = f"{error}." if isinstance(error, OSError) else f"Internal error: {error!r}. The log has details."
        warn(text)
        if code != USAGE_EXIT:
            self._write("error_during_execution", text, type(error).__name__)
        return code

    def finish(self, code: int) -> int:
        """The run has come to its end; gives the exit code. Nothing is missing where nothing was asked."""
        if code not in (0, USAGE_EXIT):
            self._write("interrupted" if code > 128 else "error_during_execution", "")
        return code

    def _write(self, subtype: str, text: str, reason: str = "") -> None:
        if self._is_json and not self._out.ends_with_result:
            self._out.write(to_json_line(self._result(subtype, text, reason)))

    def _result(self, subtype: str, text: str, reason: str = "") -> dict[str, Any]:
        return result_object(subtype, printable(text), session_id=printable(self.session_id), reason=reason)

    # Signals

    def leave_on_signals(self, noted: Sequence[int] = ()) -> None:
        """From now on a signal ends the run where it stands, as one of those that were `noted` does now."""
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, self.leave_at_once)
        if noted:
            self.leave_at_once(noted[0])

    def leave_at_once(self, number: int, frame: object = None) -> None:
        """End the process; what was said is stored. Waits for nothing, so the result goes past every buffer."""
        if self._is_leaving:  # one signal came in the middle of this for another
            return
        if self._out.ends_with_result and (self._is_single or self.has_answered):
            return  # all is said, and the exit code is the one that goes with it
        self._is_leaving = True
        if self._is_json and not self._out.ends_with_result:
            start = b"\n" if self._out.is_within_line else b""
            line = start + to_json_line(self.unfinished())
            taken = select.poll()
            taken.register(1, select.POLLOUT)
            if taken.poll(0):  # else nobody reads, and waiting would be for good
                with suppress(OSError):
                    os.write(1, line)
        os._exit(128 + number)

    def leave_stuck(self, why: str) -> None:
        """End the process although something in it does not end; what was said is stored."""
        warn(why)
        self._write("error_during_execution", why, "GivenUp")
        os._exit(1)

    @staticmethod
    def restore_signals() -> None:
        """Give signals their usual meaning again, for what heeds them itself."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
