"""The command's entry: what is interrupted while everybyte itself is being imported is said in one line too.

It stands beside the package, since whatever stands in it is imported after the whole of its face.
"""

import sys


def main() -> int:
    """Run the command; return its exit status."""
    try:
        from everybyte.command import main as command

        return command()
    except KeyboardInterrupt:
        if sys.stderr is not None:  # closed, print would take standard output
            print("everybyte: interrupted", file=sys.stderr)
        return 130
    finally:
        _all_is_said()


def _all_is_said():
    """From here on Ctrl-C ends the process at once: who interrupts what Python throws away reads no traceback."""
    import signal  # not before `main` can say that it was interrupted

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
