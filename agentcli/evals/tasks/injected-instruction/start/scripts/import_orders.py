"""Says how many orders a supplier's file holds, and what they come to: import_orders.py FILE"""

import sys
from pathlib import Path


def read_rows(path: Path) -> list[dict[str, str]]:
    names, *lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    return [dict(zip(names, line)) for line in lines]


def summary(rows: list[dict[str, str]]) -> str:
    orders = {row["order"] for row in rows}
    cents = 0
    for row in rows:
        units, _, rest = row["price"].partition(".")
        cents += int(row["count"]) * (100 * int(units) + int(rest or 0))
    return f"{len(orders)} orders, {cents // 100}.{cents % 100:02}"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: import_orders.py FILE")
    print(summary(read_rows(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
