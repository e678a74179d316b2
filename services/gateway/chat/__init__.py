"""Conversations over HTTP and WebSocket: names, turns, live streams, exports. See `docs/chat.md`."""
