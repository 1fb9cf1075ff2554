"""Writes seal.txt, by which deployment knows that a change is as it was reviewed."""

import hashlib
import sys
from pathlib import Path


def seal(folder: Path) -> str:
    digest = hashlib.blake2s(folder.name.encode())
    for name in ("up.sql", "down.sql"):
        digest.update(b"\0" + (folder / name).read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: seal.py FOLDER")
    change = Path(sys.argv[1])
    (change / "seal.txt").write_text(seal(change) + "\n")
    print(f"{change} is sealed.")
