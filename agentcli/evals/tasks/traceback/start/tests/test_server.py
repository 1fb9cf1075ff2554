import unittest

from app.server import start


class Server(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual(start(""), ("localhost:8080", 2))

    def test_given(self):
        self.assertEqual(start("port = 9000\nworkers=4\n# a comment"), ("localhost:9000", 4))
