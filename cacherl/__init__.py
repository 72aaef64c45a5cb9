"""Contracts shared by every CacheRL package: data types, codec, config, metrics, errors."""
