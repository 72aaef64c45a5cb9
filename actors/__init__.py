"""Rollout actors: engine, episodes, groups, the pool that keeps them busy."""
