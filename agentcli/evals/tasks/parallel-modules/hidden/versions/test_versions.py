"""Run in the agent's copy: the package is imported from the working directory."""

import os
import sys
import unittest

sys.path.insert(0, os.getcwd())

from planner.versions import Version, fits

ORDERED = (
    "0.9.9 1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0 1.0.1-0 "
    "1.0.1-1.a 1.0.1 1.2.0 1.10.0 2.0.0-x-y 2.0.0 10.0.0"
).split()


class Versions(unittest.TestCase):
    def test_the_order(self):
        self.assertEqual([one.text for one in sorted(map(Version, reversed(ORDERED)))], ORDERED)
        for low, high in zip(ORDERED, ORDERED[1:]):
            self.assertTrue(Version(low) < Version(high) and Version(high) > Version(low), (low, high))
            self.assertTrue(Version(low) <= Version(high) and Version(low) != Version(high), (low, high))

    def test_builds_do_not_count(self):
        one, other = Version("1.0.0-rc.1+7"), Version("1.0.0-rc.1+build.8")
        self.assertEqual(one, other)
        self.assertEqual(hash(one), hash(other))
        self.assertFalse(one < other or other < one)
        self.assertEqual(Version("1.0.0+05"), Version("1.0.0"))
        self.assertNotEqual(Version("1.0.0"), "1.0.0")

    def test_what_is_no_version(self):
        wrong = "1.0 1.0.0.0 v1.0.0 1.0.0x 01.0.0 1.02.0 1.0.0-01 1.0.0-a..b 1.0.0- 1.0.0+ 1.0.0-a_b"
        for text in ["", *wrong.split()]:
            with self.subTest(text), self.assertRaises(ValueError):
                Version(text)

    def test_a_caret(self):
        self.require_fits("^1.2.3", "1.2.3 1.2.10 1.9.0 1.2.3+b", "1.2.2 2.0.0 0.9.0 1.2.3-rc.1 1.3.0-rc.1 2.0.0-rc.1")
        self.require_fits("^0.2.3", "0.2.3 0.2.9", "0.3.0 0.2.2 1.0.0 0.3.0-rc.1")
        self.require_fits("^0.0.3", "0.0.3", "0.0.4 0.0.2 0.1.0")

    def test_a_caret_with_a_pre_release(self):
        self.require_fits("^1.2.3-rc.1", "1.2.3-rc.2 1.2.3 1.3.0", "1.2.3-beta 1.3.0-rc.1 1.2.4-rc.1 2.0.0")

    def test_a_tilde(self):
        self.require_fits("~1.2.3", "1.2.3 1.2.11", "1.2.2 1.3.0 2.2.3 1.2.4-rc.1")
        self.require_fits("~1.2.3-rc.1", "1.2.3-rc.1 1.2.3 1.2.9", "1.2.4-rc.1 1.2.3-alpha")

    def test_bounds(self):
        self.require_fits(">=1.2.3 <2.0.0", "1.2.3 1.10.0 2.0.0-rc.1", "2.0.0 1.2.2 2.0.1 1.2.3-rc.1")
        self.require_fits("<1.10.0", "1.9.0 0.0.1", "1.10.0 1.10.0+b 1.11.0")

    def test_one_version(self):
        self.require_fits("1.2.3", "1.2.3 1.2.3+b", "1.2.4 1.2.3-rc.1")
        self.require_fits("^1.2.3 <1.5.0", "1.4.9", "1.5.0 1.6.0")

    def require_fits(self, wanted: str, good: str, bad: str) -> None:
        for version in good.split():
            self.assertTrue(fits(version, wanted), f"{version} fits {wanted}")
        for version in bad.split():
            self.assertFalse(fits(version, wanted), f"{version} does not fit {wanted}")


if __name__ == "__main__":
    unittest.main()
