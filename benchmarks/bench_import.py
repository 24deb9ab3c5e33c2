"""What it costs to begin: import, a first scenario, and --help, each in a fresh process."""

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _ratio import LOWER, Report, in_turns, run

OURS = "import mlsysim_sweep"
THEIRS = "import mlsysim"
FIRST = "import {} as m; m.Scenarios.Gpt3ThreeDParallel1K.result"
HELP_LIMIT = 0.5


def cpu(command: Sequence[str | Path]) -> float:
    """CPU seconds of one process, user and system."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(map(str, command)))
    return usage.ru_utime + usage.ru_stime


def python(code: str) -> float:
    return cpu([sys.executable, "-P", "-c", code])


def main(quick: bool) -> int:
    report = Report(quick)
    rounds = 1 if quick else 9
    theirs, ours, ratio = in_turns(lambda: python(THEIRS), lambda: python(OURS), rounds)
    report.ratio(
        "import mlsysim_sweep / import mlsysim, CPU of the process",
        ratio,
        LOWER,
        0.2,
        f"{ours:.3f} s / {theirs:.3f} s, start of Python {python('pass'):.3f} s in both",
    )
    theirs, ours, ratio = in_turns(
        lambda: python(FIRST.format("mlsysim")),
        lambda: python(FIRST.format("mlsysim_sweep")),
        rounds,
    )
    report.ratio(
        "import and one scenario's result / the same in mlsysim, CPU",
        ratio,
        LOWER,
        None,
        f"{ours:.3f} s / {theirs:.3f} s",
    )
    command = Path(sys.executable).with_name("mlsysim-sweep")
    cpu([command, "--help"])
    helps = [cpu([command, "--help"]) for _ in range(rounds)]
    report.ratio(
        f"mlsysim-sweep --help / limit of {HELP_LIMIT} s, CPU",
        statistics.median(helps) / HELP_LIMIT,
        LOWER,
        1,
        f"{statistics.median(helps):.3f} s",
    )
    return report.exit_code()


if __name__ == "__main__":
    run(main)
