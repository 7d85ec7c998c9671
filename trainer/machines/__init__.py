"""Machines: instance types, prices, chips, memory, rates, and the estimate of a run's time and cost."""
