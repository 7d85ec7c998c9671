"""Where a launch's work comes from at a desk: candles, folders, buckets, scripts."""
