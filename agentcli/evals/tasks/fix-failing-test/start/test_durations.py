import unittest

from durations import format_seconds, parse


class Durations(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse("1h30m"), 5400)

    def test_parse_refuses_other_text(self):
        with self.assertRaises(ValueError):
            parse("soon")

    def test_format(self):
        self.assertEqual(format_seconds(7325), "2h2m5s")

    def test_format_one_hour(self):
        self.assertEqual(format_seconds(3600), "1h")


if __name__ == "__main__":
    unittest.main()
