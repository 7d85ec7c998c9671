"""The machine's side of a run: bootstrap, agent, inputs, commands, uploads, report."""
