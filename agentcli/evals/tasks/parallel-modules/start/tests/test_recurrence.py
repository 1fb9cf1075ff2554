import unittest
from datetime import date

from planner.recurrence import monthly, nth_weekday, weekly


class Recurrence(unittest.TestCase):
    def test_each_month(self):
        self.assertEqual(monthly(date(2025, 3, 5), 2), [date(2025, 3, 5), date(2025, 4, 5)])

    def test_the_end_of_a_month(self):
        days = monthly(date(2025, 1, 31), 3)
        self.assertEqual(days, [date(2025, 1, 31), date(2025, 2, 28), date(2025, 3, 31)])

    def test_weekdays(self):
        days = [*weekly(date(2025, 5, 5), date(2025, 5, 12), {0, 2})]
        self.assertEqual(days, [date(2025, 5, 5), date(2025, 5, 7), date(2025, 5, 12)])

    def test_the_second_tuesday(self):
        self.assertEqual(nth_weekday(2025, 5, 1, 2), date(2025, 5, 13))


if __name__ == "__main__":
    unittest.main()
