"""Scheduled runs: schedules (the stack's settings), jobs (published retrains), and the result of each
scheduled time.
"""
