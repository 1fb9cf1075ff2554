"""The conversation: entries as a tree, the messages made of them, and the texts a session begins with.

It knows no store and no provider: a log gives entries their ids, `llm` carries the messages.
"""
