"""Fetch bars from exchanges and from Yahoo into files of a data set: `mayfly data fetch`."""
