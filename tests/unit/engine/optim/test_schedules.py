"""Schedules are torch's and transformers' curves, begin and end where they say, and plateau remembers what it must."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.config.optimization import SchedulerConfig
from vaak.core.errors import UserError
from vaak.engine.optim.schedules import Plateau, make_schedule

DECAYING = ("linear", "cosine", "wsd", "polynomial")
ALL = ("constant", *DECAYING, "cosine_restarts", "inverse_sqrt", "one_cycle", "plateau")


def factors(total, lr=1.0, **options):
    schedule = make_schedule(SchedulerConfig(**options), total, lr)
    return [schedule(step) for step in range(1, total + 1)]


def compute_rates(make_scheduler, steps, lr=1.0):
    """The rates that a torch scheduler gives to updates 1 to ``steps``."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "one_cycle"])
@pytest.mark.parametrize("warmup", [{}, {"warmup_steps": 10}, {"warmup_ratio": 0.1}])
def test_warm_up_is_linear_and_ends_at_the_peak(kind, warmup):
    rates = factors(100, type=kind, **warmup)
    peak = 10 if warmup else 1
    assert rates[:peak] == pytest.approx([step / peak for step in range(1, peak + 1)])
    assert max(rates) == rates[peak - 1] == 1.0


@given(
    kind=st.sampled_from(ALL),
    total=st.integers(1, 200),
    warmup=st.floats(0, 0.99),
    min_lr=st.floats(0, 1),
)
def test_rates_are_above_zero_and_never_above_the_peak(kind, total, warmup, min_lr):
    config = SchedulerConfig(type=kind, warmup_ratio=warmup, min_lr=min_lr if kind in (*DECAYING, "one_cycle") else 0.0)
    schedule = make_schedule(config, total, 1.0)
    assert all(0 < schedule(step) <= 1 for step in range(1, total + 1))


@pytest.mark.parametrize("kind", [*DECAYING, "one_cycle"])
def test_rates_arrive_at_min_lr_behind_the_last_step_and_stay(kind):
    schedule = make_schedule(SchedulerConfig(type=kind, warmup_steps=5, min_lr=1e-4), 100, 1e-3)
    assert schedule(101) == schedule(1000) == pytest.approx(0.1)
    assert schedule(100) > 0.1


@pytest.mark.parametrize("warmup", [0, 7])
def test_curves_are_those_of_transformers(warmup):
    optimization = pytest.importorskip("transformers.optimization")
    # Ours peaks at step ``warmup``, theirs one step later, after a first update at a rate of zero.
    theirs, total = max(warmup - 1, 0), 60
    decay = slice(max(warmup, 1), None)
    cases = {
        "linear": lambda o: optimization.get_linear_schedule_with_warmup(o, theirs, total),
        "cosine": lambda o: optimization.get_cosine_schedule_with_warmup(o, theirs, total),
        "wsd": lambda o: optimization.get_wsd_schedule(
            o, theirs, num_decay_steps=13, num_training_steps=total, decay_type="linear"
        ),
    }
    for kind, make in cases.items():
        assert factors(total, type=kind, warmup_steps=warmup)[decay] == pytest.approx(
            compute_rates(make, total)[decay]
        ), kind


def test_polynomial_is_transformers():
    optimization = pytest.importorskip("transformers.optimization")
    theirs = compute_rates(
        lambda o: optimization.get_polynomial_decay_schedule_with_warmup(o, 0, 50, lr_end=1e-5, power=2.5), 50, lr=1e-3
    )
    ours = factors(50, lr=1e-3, type="polynomial", power=2.5, min_lr=1e-5)
    assert [1e-3 * factor for factor in ours] == pytest.approx(theirs)


def test_inverse_square_root_is_that_of_the_transformer_paper():
    rates = factors(400, type="inverse_sqrt", warmup_steps=100)
    assert rates == pytest.approx([min(step**-0.5, step * 100**-1.5) * 10 for step in range(1, 401)])


@pytest.mark.parametrize("growth", [1, 2, 3])
def test_cosine_with_restarts_is_torchs(growth):
    theirs = compute_rates(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7, T_mult=growth, eta_min=0.1), 80
    )
    ours = factors(80, type="cosine_restarts", first_cycle_steps=7, cycle_growth=growth, min_lr=0.1)
    assert ours == pytest.approx(theirs)


def test_one_cycle_is_torchs():
    total = 79
    theirs = compute_rates(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o,
            max_lr=1.0,
            total_steps=total + 1,
            pct_start=0.25,
            div_factor=20,
            final_div_factor=5,
            cycle_momentum=False,
        ),
        total,
    )
    ours = factors(total, type="one_cycle", peak_at=20 / total, initial_div=20, min_lr=1 / 100)
    assert ours == pytest.approx(theirs)


def test_warm_up_of_one_cycle_is_its_rise():
    rates = factors(100, type="one_cycle", warmup_steps=20)
    assert rates[19] == max(rates) == 1.0
    assert rates[0] == pytest.approx(1 / 25)


def test_wsd_is_flat_until_its_last_part():
    rates = factors(100, type="wsd", warmup_steps=10, decay_ratio=0.2)
    assert rates[9:80] == [1.0] * 71
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[79:]))


def test_what_cannot_be_is_said():
    with pytest.raises(UserError, match=r"warmup_steps \(11\) is more than the 10 steps"):
        make_schedule(SchedulerConfig(warmup_steps=11), 10, 1.0)
    with pytest.raises(UserError, match=r"min_lr \(0.1\) is above training.optimizer.lr \(0.01\)"):
        make_schedule(SchedulerConfig(type="cosine", min_lr=0.1), 10, 0.01)


@given(st.lists(st.floats(-10, 10) | st.just(math.nan), min_size=1, max_size=40), st.sampled_from(["min", "max"]))
def test_plateau_is_torchs_and_survives_a_restart(values, mode):
    config = SchedulerConfig(type="plateau", patience=2, factor=0.5, min_lr=0.1, mode=mode)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode=mode, factor=0.5, patience=2, threshold=0.0, threshold_mode="abs", min_lr=0.1, eps=0.0
    )
    ours = Plateau(config, 1.0)
    for value in values:
        restarted = Plateau(config, 1.0)
        restarted.load_state_dict(json.loads(json.dumps(ours.state_dict())))
        ours = restarted
        ours.observe({"val_loss": value})
        theirs.step(value)
        assert ours.factor == pytest.approx(optimizer.param_groups[0]["lr"])


def test_plateau_names_the_metrics_there_are():
    with pytest.raises(UserError, match=r"no metric val_loss; the evaluation gives accuracy, loss"):
        Plateau(SchedulerConfig(type="plateau"), 1.0).observe({"loss": 1.0, "accuracy": 0.5})
