"""Entry points of the Lambdas: sweeper, control, notifier."""
