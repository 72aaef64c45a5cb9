"""The research family: multi-hop questions about a small world, answered with search and read."""
