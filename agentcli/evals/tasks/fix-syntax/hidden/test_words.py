import subprocess
import sys
import unittest


class Words(unittest.TestCase):
    def test_counts(self):
        from words import count_words

        self.assertEqual(count_words('The cat. the "dog"!'), {"the": 2, "cat": 1, "dog": 1})

    def test_order(self):
        from words import most_common

        self.assertEqual(most_common({"b": 1, "a": 1, "c": 3}, 2), [("c", 3), ("a", 1)])

    def test_limit(self):
        from words import most_common

        self.assertEqual(most_common({"a": 1}, 0), [])

    def test_program(self):
        done = subprocess.run([sys.executable, "words.py"], input="b a b", capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "   2 b\n   1 a\n")
