"""Traces the courses with which the edition answers a config.json, some minutes, and stores them beside their code."""

import json
from pathlib import Path

from everybyte.explore import configs

PLACE = Path(configs.__file__).with_name(configs.FILE)


def main() -> None:
    """Write the file anew."""
    found = {"signature": configs.signature()} | configs.traced()
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(part, separators=(',', ':'))}" for name, part in found.items())
    PLACE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
