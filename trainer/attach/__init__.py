"""Access to a running node: through Session Manager (`ssm`), or by SSH with pinned host keys and a key of the
run (`ssh`).

Which of them a stack allows is its setting `attach` (infra/attach.py). Runs at a desk only;
`trainer.cli.verbs.attach` is the verb.
"""
