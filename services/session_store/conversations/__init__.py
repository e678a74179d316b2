"""Conversations: trees of messages, compaction, context blocks."""
