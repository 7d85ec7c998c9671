# Everything is in scripts/; each target sets up what it needs first.
.PHONY: help setup state demo weekly test quick check nightly chaos cluster

help:
	@echo "make demo    rehearse a run on the embedded AWS (no account, no GPU); DATA=DIR takes your candles"
	@echo "make weekly  watch two Sundays of a scheduled retrain, full pools and a lost machine too, on a moved clock (three minutes)"
	@echo "make test    format, lint, types, import rules and the tests, in eight minutes on two idle cores"
	@echo "make quick   a first look in a minute: lint, and the tests that start no run and no training"
	@echo "make check   the first part of make test"
	@echo "make nightly what takes too long for make test: more whole runs, settings in pairs, a rehearsed p4d (about an hour)"
	@echo "make chaos N=10000  what a run survives: callers killed at every step, faults by seed, on a simulated AWS (minutes)"
	@echo "make cluster runs on several machines: three trainings with one killed, lost heads, wrong tokens, what a pack costs (minutes)"
	@echo "make setup   only the set-up, in .venv"
	@echo "make state   a bucket of the account for Pulumi's state, and Pulumi's login to it"

setup state demo weekly test quick check nightly cluster:
	@scripts/$@

chaos:
	@scripts/chaos $(N)
