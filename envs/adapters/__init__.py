"""Environments of others: public suites, and text environments of the Gymnasium and SkyRL-gym kind."""
