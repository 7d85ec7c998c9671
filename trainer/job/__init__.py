"""The job: its tables, their keys and checks, and the pieces that it makes."""
