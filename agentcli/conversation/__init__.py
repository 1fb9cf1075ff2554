"""The conversation: entries as a tree, and the messages made of them. It knows no store and no provider."""
