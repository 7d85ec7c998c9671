"""What a training shows: `events` (JSONL), `observe` and `tensorboard` (files), `gpu_watch` (NVML), `trace` (a profile)."""
