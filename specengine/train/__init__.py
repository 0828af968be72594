"""Training: adapters that teach a model to fill in the middle."""
