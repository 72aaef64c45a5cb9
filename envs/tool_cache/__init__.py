"""Tool-result cache: results of slow or paid tool calls, served to later rollouts. Not the replay of rollouts."""
