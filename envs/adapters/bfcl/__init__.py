"""BFCL multi-turn: the stateful tasks of the Berkeley Function Calling Leaderboard, without its harness."""
