"""The reports family: research in whole documents with near-duplicate titles, which ends in a submitted report."""
