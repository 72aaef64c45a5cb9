"""The code family: questions about small tables, answered by running Python and SQL in the sandbox."""
