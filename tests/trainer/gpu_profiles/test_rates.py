from __future__ import annotations

import pytest

from trainer.config import Job
from trainer.gpu_profiles.chips import named_profile
from trainer.gpu_profiles.rates import visits_per_second


def test_the_reference_model_trains_at_the_profiles_rate_and_a_larger_one_slower():
    cpu, l4 = named_profile("cpu"), named_profile("l4")
    assert visits_per_second(cpu, Job()) == pytest.approx(2_000)
    assert visits_per_second(cpu, Job(hidden=256)) == pytest.approx(2_000 / 8)
    assert visits_per_second(l4, Job(lookback=120)) == pytest.approx(visits_per_second(l4, Job()) / 2)


def test_a_tcns_rate_is_in_bars():
    small, large = (visits_per_second(named_profile("cpu"), Job(model="tcn", chunk=chunk)) for chunk in (1024, 4096))
    assert small == pytest.approx(1_100, rel=0.1)  # as measured at full size: docs/benchmarks.md
    assert small < large < 2 * small  # the receptive field is read again for each chunk
