"""Counts the words of a text."""

import sys


def count_words(text):
    """How often each word occurs, in lower case, without punctuation around it."""
    counts = {}
    for word in text.split():
        word = word.strip(".,;:!?()\"'").lower()
        if word:
            counts[word] = counts.get(word, 0) + 1
    return counts


def most_common(counts, limit):
    """The words that occur most, the most frequent first; equal ones by the alphabet."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0])
    return ordered[:limit]


def main():
    for word, count in most_common(count_words(sys.stdin.read()), 10):
        print(f"{count:4d} {word}")


if __name__ == "__main__":
    main()
