"""The data family: questions about small tables, answered with aggregates and a calculator."""
