"""What a rule's mask costs over the same comparison written by hand in NumPy."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from _ratio import LOWER, Report, in_turns, run, seconds

from mlsysim_sweep import Sweep
from mlsysim_sweep.constraints import mask, names, parse
from mlsysim_sweep.engine.mesh import Array, whole
from mlsysim_sweep.engine.plan import Plan

ByHand = Callable[[Mapping[str, Array]], Any]

RULES: Mapping[str, ByHand] = {
    "step_time < 5 s": lambda v: v["step_time"] < 5.0,
    "efficiency > 0.5 and step_time < 5 s": lambda v: (
        (v["efficiency"] > 0.5) & (v["step_time"] < 5.0)
    ),
    "not (step_time >= 5 s or pp > layers)": lambda v: (
        (v["step_time"] < 5.0) & (v["pp"] <= v["layers"])
    ),
    "layers % pp == 0": lambda v: v["layers"] % v["pp"] == 0,
    "dp * microbatches * 2048 <= 4000000": lambda v: v["dp"] * v["microbatches"] * 2048 <= 4000000,
    "exposed_time / step_time < 0.1": lambda v: v["exposed_time"] / v["step_time"] < 0.1,
    "n_devices in [256, 512, 1024, 2048]": lambda v: np.isin(
        v["n_devices"], (256, 512, 1024, 2048)
    ),
}


def grid(quick: bool) -> Plan:
    """One block of 65,536 points, which is where the engine asks for masks."""
    sweep = Sweep(
        inputs={
            "workload": "GPT3",
            "accelerator": "H100",
            "batch_tokens": 2e6,
            "flops_per_param_token": 6,
            "local_efficiency": 0.5,
            "link_bandwidth": "400 Gbps",
            "overlap_fraction": 0.75,
            "tp": 8,
        },
        axes={
            "pp": [1, 2, 4, 8],
            "dp": {"range": [1, 16 if quick else 256]},
            "microbatches": {"range": [1, 64]},
        },
        feasible={"memory": "off"},
    )
    return Plan(sweep.grid)


def repeated(work: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        work()


def main(quick: bool) -> int:
    report = Report(quick)
    box = whole(grid(quick))
    times, rounds = (2, 1) if quick else (300, 15)
    for text, by_hand in RULES.items():
        predicate = parse(text)
        values = {name: box(name) for name in names(predicate)}
        ours, hand = partial(mask, predicate, box), partial(by_hand, values)
        shape = np.broadcast_shapes(ours().shape, hand().shape)
        np.testing.assert_array_equal(np.broadcast_to(ours(), shape), hand())
        cost_hand, cost_ours, ratio = in_turns(
            partial(seconds, partial(repeated, hand, times)),
            partial(seconds, partial(repeated, ours, times)),
            rounds,
        )
        micro = 1e6 / times
        report.ratio(
            f"rule / by hand: {text}",
            ratio,
            LOWER,
            None if ours().size < box.points else 1.25,
            f"{cost_ours * micro:.1f} us / {cost_hand * micro:.1f} us for {ours().size:,} cells",
        )
    return report.exit_code()


if __name__ == "__main__":
    run(main)
