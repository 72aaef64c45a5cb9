"""agentdojo: the user tasks of its four suites, without its attacks and without the clients of model vendors."""
