"""The composition root: command line, launch, loop, reports."""
