"""Durable, prioritized replay of trajectory groups on a Redis-protocol server."""
