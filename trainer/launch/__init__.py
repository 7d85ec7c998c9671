"""One start: preflight, plan, ladder, requests, bundle, manifest. `python -m trainer.launch` is `mayfly launch`."""
