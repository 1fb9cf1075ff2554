"""The conversation: a tree of entries, and the messages derived from them. It knows of no store or provider."""
