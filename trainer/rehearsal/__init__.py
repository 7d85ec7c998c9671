"""The embedded AWS: moto behind a front of our own, with instances, schedules and functions that really run
on this machine.

Start at `client.rehearsal` (what commands use), `server.EmbeddedAws` (what tests use), then `front` and
`world`.
"""
