"""The command's entry: what is interrupted while everybyte itself is being imported is said in one line too.

It stands beside the package, since whatever stands in it is imported after the whole of its face.
"""

import sys


def main() -> int:
    """Run the command; return its exit status."""
    try:
        from everybyte.cli import main as command
    except KeyboardInterrupt:
        print("everybyte: interrupted", file=sys.stderr)
        return 130
    return command()
