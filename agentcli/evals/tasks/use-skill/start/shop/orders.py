"""Reads orders from the database."""

import sqlite3


def orders_of(database: sqlite3.Connection, customer_id: int, limit: int = 50) -> list[tuple[int, str, str]]:
    """A customer's newest orders: id, time, state."""
    return database.execute(
        "SELECT id, placed_at, state FROM orders WHERE customer_id = ? ORDER BY placed_at DESC LIMIT ?",
        (customer_id, limit),
    ).fetchall()
