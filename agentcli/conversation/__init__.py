"""The conversation: a tree of entries, and the messages derived from them. It knows no store and no provider."""
