"""What verbs draw: plans, progress, receipts, tables."""
