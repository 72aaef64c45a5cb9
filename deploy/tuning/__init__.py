"""`cacherl tune`: a search over config keys, each trial of which is a training run."""
