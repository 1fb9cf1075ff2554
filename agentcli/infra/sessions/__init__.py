"""Stores of sessions. They give entries their ids and order, and know nothing of what a conversation means."""
