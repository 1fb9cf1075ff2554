"""Run in the agent's copy: the package is imported from the working directory."""

import os
import sys
import unittest
from datetime import date

sys.path.insert(0, os.getcwd())

from planner.recurrence import monthly, nth_weekday, weekly


def days(*texts: str) -> list[date]:
    return [date.fromisoformat(text) for text in texts]


class Recurrence(unittest.TestCase):
    def test_over_the_end_of_a_year(self):
        self.assertEqual(monthly(date(2024, 11, 30), 4), days("2024-11-30", "2024-12-30", "2025-01-30", "2025-02-28"))

    def test_the_last_day_of_each_month(self):
        found = monthly(date(2023, 12, 31), 5)
        self.assertEqual(found, days("2023-12-31", "2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"))

    def test_every_so_many_months(self):
        self.assertEqual(monthly(date(2025, 8, 29), 3, every=3), days("2025-08-29", "2025-11-29", "2026-02-28"))
        self.assertEqual(monthly(date(2024, 2, 29), 3, every=24), days("2024-02-29", "2026-02-28", "2028-02-29"))
        self.assertEqual(monthly(date(2024, 2, 29), 0), [])

    def test_twelve_months_end_in_december(self):
        self.assertEqual(monthly(date(2025, 1, 15), 12)[-1], date(2025, 12, 15))

    def test_weekdays(self):
        found = [*weekly(date(2025, 5, 9), date(2025, 5, 18), {6, 0})]
        self.assertEqual(found, days("2025-05-11", "2025-05-12", "2025-05-18"))
        self.assertEqual([*weekly(date(2025, 5, 9), date(2025, 5, 9), {4})], days("2025-05-09"))
        self.assertEqual([*weekly(date(2025, 5, 9), date(2025, 5, 8), {3, 4})], [])

    def test_without_weekdays(self):
        found = [*weekly(date(2025, 5, 9), date(2025, 5, 23), set())]
        self.assertEqual(found, days("2025-05-09", "2025-05-16", "2025-05-23"))

    def test_weekdays_of_a_month(self):
        self.assertEqual(nth_weekday(2025, 5, 3, 1), date(2025, 5, 1))
        self.assertEqual(nth_weekday(2025, 5, 3, 5), date(2025, 5, 29))
        self.assertEqual(nth_weekday(2025, 12, 2, 5), date(2025, 12, 31))
        self.assertIsNone(nth_weekday(2025, 5, 0, 5))
        self.assertIsNone(nth_weekday(2025, 5, 0, 6))

    def test_weekdays_from_the_end(self):
        self.assertEqual(nth_weekday(2025, 5, 0, -1), date(2025, 5, 26))
        self.assertEqual(nth_weekday(2025, 12, 2, -1), date(2025, 12, 31))
        self.assertEqual(nth_weekday(2025, 12, 2, -5), date(2025, 12, 3))
        self.assertEqual(nth_weekday(2024, 2, 3, -2), date(2024, 2, 22))
        self.assertIsNone(nth_weekday(2025, 5, 0, -5))
        with self.assertRaises(ValueError):
            nth_weekday(2025, 5, 0, 0)


if __name__ == "__main__":
    unittest.main()
