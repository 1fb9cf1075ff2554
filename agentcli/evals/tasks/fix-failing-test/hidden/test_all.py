import unittest

from durations import format_seconds, parse


class Durations(unittest.TestCase):
    def test_one_of_each(self):
        self.assertEqual(format_seconds(3661), "1h1m1s")

    def test_zero(self):
        self.assertEqual(format_seconds(0), "0s")

    def test_one_second(self):
        self.assertEqual([format_seconds(1), format_seconds(60)], ["1s", "1m"])

    def test_there_and_back(self):
        for seconds in range(0, 20_000, 7):
            self.assertEqual(parse(format_seconds(seconds)), seconds)

    def test_refuses(self):
        for text in ("", "5", "h", "1d", "1h x"):
            with self.assertRaises(ValueError):
                parse(text)
