"""Decides when a conversation is compacted, and has summaries written. `conversation/compaction` plans the cuts."""
