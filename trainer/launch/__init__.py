"""Launch of a run: preflight, plan, ladder, bundle, manifest. `python -m trainer.launch` is `mayfly
launch`.
"""
