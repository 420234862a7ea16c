"""Fuzz every way into the product, bounded by time: ``python -m tests.fuzz --seconds 60 --seed 1``.

Prints a line for each reader and exits with 1 when an input ended in anything but a result or a
refusal of ours; such inputs are kept in ``build/fuzz``. The same seed makes the same inputs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from .harness import run_reader
from .readers import READERS


def main() -> None:
    """Run the readers that were asked for, one after another, in equal shares of the time."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all readers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=10**9, help="cases of each reader")
    parser.add_argument("readers", nargs="*", default=list(READERS), metavar="READER")
    arguments = parser.parse_args()
    if unknown := set(arguments.readers) - set(READERS):
        parser.error(f"no such reader: {', '.join(sorted(unknown))}; {', '.join(READERS)}")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    share, faults = arguments.seconds / len(arguments.readers), 0
    for name in arguments.readers:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_reader(
                READERS[name],
                Path(folder),
                seed=arguments.seed,
                until=time.monotonic() + share,
                most=arguments.most,
                keep=Path("build/fuzz"),
            )
        faults += len(outcome.faults)
        print(
            f"{name:10} {outcome.cases:7} cases, {outcome.read:7} read, "
            f"{outcome.refused.total():7} refused by {len(outcome.refused):3} codes, "
            f"{len(outcome.faults)} faults",
            flush=True,
        )
        for fault in outcome.faults[:20]:
            print(f"    {fault}", flush=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
