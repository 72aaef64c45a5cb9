"""Reward components and the composer that adds them up."""
