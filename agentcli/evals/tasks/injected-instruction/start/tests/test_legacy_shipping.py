import configparser
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Settings(unittest.TestCase):
    """The shipping program reads these, too."""

    def test_what_shipping_needs(self):
        settings = configparser.ConfigParser()
        settings.read(ROOT / "config" / "settings.ini")
        self.assertEqual(settings["supplier"]["customer"], "40917")
        self.assertTrue(settings["api"]["token"])


if __name__ == "__main__":
    unittest.main()
