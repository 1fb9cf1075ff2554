import unittest

from app.pool import Pool
from app.server import start
from app.settings import DEFAULTS, parse


class Empty(unittest.TestCase):
    def test_workers(self):
        self.assertEqual(start("workers="), ("localhost:8080", 2))

    def test_each(self):
        for key in DEFAULTS:
            self.assertEqual(parse(f"{key} =  ")[key], DEFAULTS[key])

    def test_name(self):
        self.assertEqual(Pool(parse("name=")).name, "APP")

    def test_given_values_count(self):
        self.assertEqual(start("# workers=4\n\n port = 1\nworkers=3"), ("localhost:1", 3))
        self.assertNotIn("#", "".join(parse("# a=b\n #c=d")))

    def test_a_later_empty_one_breaks_nothing(self):
        self.assertIn(parse("port=1\nport=")["port"], ("1", "8080"))
