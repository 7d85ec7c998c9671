"""Output of a training: `events` (JSONL), `observe` and `tensorboard` (files), `gpu_watch` (NVML), `trace` (a
profile).
"""
