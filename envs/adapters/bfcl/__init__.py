"""BFCL multi-turn: the Berkeley Function Calling Leaderboard's stateful tasks, without its harness, which evaluates model text."""
