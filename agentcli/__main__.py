"""Where the program begins: the version is answered before anything else is imported."""

import sys


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from agentcli import __version__

        print(f"agentcli {__version__}")
        return
    import gc

    gc.disable()  # imports make nothing but live objects; the front ends turn it on again
    from agentcli.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
