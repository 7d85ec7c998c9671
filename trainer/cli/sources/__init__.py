"""Sources of a launch's work at a desk: candles, folders, buckets, scripts."""
