"""Jailed workers for tools that run an agent's code."""
