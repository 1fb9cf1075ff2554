"""Prints what the functions make of three orders, or nothing where they do not agree."""

import json
import sys

sys.path.insert(0, sys.argv[1])

from orders import for_books, for_person, for_warehouse  # noqa: E402


def figures(count, cents):
    order = {"items": [{"name": "a", "count": count, "cents": cents}]}
    person, warehouse, books = for_person(order).splitlines(), for_warehouse(order).splitlines(), for_books(order)
    in_cents = [round(float(line.rpartition(" ")[2]) * 100) for line in (person[0], person[-1])]
    told = [
        [*in_cents, len(person) == 3],
        [books[0][2], int(warehouse[-1].split()[-1]), len(warehouse) == 3],
        [books[0][2], books[-1][2], len(books) == 3],
    ]
    if any(one != told[0] for one in told):
        sys.exit("they do not agree")
    return told[0]


print(json.dumps([figures(20, 1000), figures(1, 5000), figures(1, 1000)]))
