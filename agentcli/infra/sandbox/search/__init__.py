"""Lists and searches files with ripgrep; the caller decides which of them are secret."""
