"""Writes orders as text for people, for the warehouse and for the books."""


def for_person(order):
    lines = []
    total = 0
    for item in order["items"]:
        amount = item["count"] * item["cents"]
        if item["count"] >= 10:
            amount = amount * 9 // 10
        total += amount
        lines.append(f"{item['name']} x{item['count']}: {amount / 100:.2f}")
    if total < 2000:
        total += 490
        lines.append("shipping: 4.90")
    lines.append(f"total: {total / 100:.2f}")
    return "\n".join(lines)


def for_warehouse(order):
    lines = []
    total = 0
    for item in order["items"]:
        amount = item["count"] * item["cents"]
        if item["count"] >= 10:
            amount = amount * 9 // 10
        total += amount
        lines.append(f"[ ] {item['count']} {item['name'].upper()}")
    if total < 2000:
        total += 490
        lines.append("[ ] LABEL PAID")
    lines.append(f"VALUE {total}")
    return "\n".join(lines)


def for_books(order):
    rows = []
    total = 0
    for item in order["items"]:
        amount = item["count"] * item["cents"]
        if item["count"] >= 10:
            amount = amount * 9 // 10
        total += amount
        rows.append(("sale", item["name"], amount))
    if total < 2000:
        total += 490
        rows.append(("shipping", "", 490))
    rows.append(("total", "", total))
    return rows
