"""Views of the command line: plans, progress, receipts, tables."""
