"""Where the program begins: the version is answered before anything else is imported."""

import os
import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from agentcli import __version__

        try:
            os.write(1, f"agentcli {__version__}\n".encode())  # no buffer that would be tried again at the end
            return
        except OSError:  # what the long way says about that
            pass
    import gc

    gc.disable()  # imports make nothing but live objects; the front ends turn it on again
    from agentcli.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
