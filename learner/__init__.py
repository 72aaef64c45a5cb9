"""The learner: advantages, losses, batches, DeepSpeed ranks, published weights."""
