"""The worker's side: runs in a process of its own, on the standard library alone, and imports nothing of the host's."""
