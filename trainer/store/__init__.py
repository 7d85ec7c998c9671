"""Models as files: cards, weights, the list of a bucket's models, production, backup."""
