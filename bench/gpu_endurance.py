"""Endurance checks: thousands of launches, two handles at once, a stopped launch. Results are printed as they come.

    python bench/gpu_endurance.py launches    10,000 training steps without waiting: losses must stay finite, and
                                              repeating the first tenth gives equal bits; prints the speed of each tenth
    python bench/gpu_endurance.py two         two handles that train in turn, with launches in flight at the same time,
                                              must end with the bits that each gets alone
    python bench/gpu_endurance.py abort       a script that the kernel cannot execute, and one that waits for ever: each
                                              must raise an error that names the place, and the handle must still work

The model is the Tree-LSTM of treelstm.py. Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from datasets import trees_file
from models import VppsTreeLstm
from on_gpu import about
from treelstm import LEARNING_RATE, in_batches, initial_weights
from trees import read_trees

import vpps

BENCH = "gpu_endurance"
PARTS = 10  # parts of a long run, each with its line
UNKNOWN, FOREVER = 0xFFFF, 0x00FFFFFF  # an opcode, and a number of signals


class Runs:
    """Networks that start from equal weights, and mini-batches for them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.path = trees_file(options.trees)
        self.trees, self.words = read_trees(self.path, options.limit)

    def network(self) -> VppsTreeLstm:
        """Return a new network."""
        o = self.options
        weights = initial_weights(self.words, o.embedding, o.hidden)
        return VppsTreeLstm(weights, "sgd", LEARNING_RATE["sgd"], o.vps, target=o.device)

    def batches(self, net: VppsTreeLstm) -> list[list[Any]]:
        """Return all the mini-batches."""
        return in_batches([net.prepare(tree) for tree in self.trees], self.options.batch_size)

    def report(self, case: str, values: list[float], unit: str, **extra: object) -> None:
        """Print one result line."""
        o = self.options
        harness.report(
            BENCH, f"{case}, batch={o.batch_size} hidden={o.hidden}", values, unit, **extra,
            **about(["vpps"], o.device, self.path),
        )  # fmt: skip


def require(holds: bool, what: str) -> None:
    """Exit unless `holds` is true."""
    if not holds:
        sys.exit(what)


def bits(net: VppsTreeLstm) -> dict[str, bytes]:
    """Return the bytes of all weights."""
    return {name: array.tobytes() for name, array in net.handle.model.numpy().items()}


def launches(runs: Runs) -> None:
    """Train without any waiting."""
    part = max(1, runs.options.launches // PARTS)
    net = runs.network()
    batches, first = runs.batches(net), 0.0
    for number in range(PARTS):
        begun = time.perf_counter()
        for k in range(number * part, (number + 1) * part):
            net.step(batches[k % len(batches)])
        loss = net.loss()
        seconds = (time.perf_counter() - begun) / part
        runs.report(f"launches {number * part + 1} to {(number + 1) * part}", [1e6 * seconds], "us/step", loss=loss)
        require(bool(np.isfinite(loss)), f"the loss is {loss}")
        first = loss if number == 0 else first
    net.close()
    again = runs.network()
    for k in range(part):
        again.step(batches[k % len(batches)])
    require(again.loss() == first, f"the same {part} steps: a loss of {again.loss()} instead of {first}")
    runs.report(f"the first {part} launches repeated", [again.loss()], "loss", same_bits=True)
    again.close()


def two(runs: Runs) -> None:
    """Train two networks in turn, the second one on the trees in reverse order; then each on its own."""

    def trained(nets: list[VppsTreeLstm], orders: list[int]) -> list[dict[str, bytes]]:
        for k in range(max(1, runs.options.launches // 100)):
            for net, order in zip(nets, orders, strict=True):
                batches = runs.batches(net)[::order]
                net.step(batches[k % len(batches)])
        found = [bits(net) for net in nets]
        for net in nets:
            net.close()
        return found

    together = trained([runs.network(), runs.network()], [1, -1])
    alone = [*trained([runs.network()], [1]), *trained([runs.network()], [-1])]
    for number, (a, b) in enumerate(zip(together, alone, strict=True)):
        require(a == b, f"network {number} of two: {[n for n in a if a[n] != b[n]]} differ from what it learns alone")
    runs.report("two handles at once", [float(len(together))], "handles", same_bits=True)


def abort(runs: Runs) -> None:
    """Stop a launch in two ways. Afterwards a stopped network must train exactly as an undisturbed one."""
    from vpps.script.instructions import TABLE

    waits = {i.opcode for i in TABLE if i.form == "Wait"}

    def unknown(net: VppsTreeLstm, script: Any) -> None:
        """Put an unknown opcode into the first instruction of a cell."""
        plan = net.handle._engine.plan
        assert plan is not None
        start, stream = plan.streams[0]
        script[start + next(s.start for s in stream.sections if s.block is not None)] = UNKNOWN

    def forever(net: VppsTreeLstm, script: Any) -> None:
        """Make the first wait expect signals that no one sends."""
        plan = net.handle._engine.plan
        assert plan is not None
        at, _ = plan.streams[0]
        while script[at] & 0xFFFF not in waits:
            at += int(script[at + 1])
        script[at + int(script[at + 1]) - 1] = FOREVER

    for damage, words in ((unknown, "the kernel stopped at"), (forever, "waited longer than")):
        net, witness = runs.network(), runs.network()
        batches = runs.batches(net)
        for batch in batches[:2]:
            net.step(batch)
            witness.step(batch)
        net.loss()
        before = net.handle.model.numpy()
        begun = time.perf_counter()
        damage_next_launch(net, damage)
        try:
            net.step(batches[0])
            net.loss()
        except vpps.KernelError as error:
            message = str(error)
        else:
            sys.exit(f"{damage.__name__}: a damaged script is no error")
        seconds = time.perf_counter() - begun
        require(words in message, f"{damage.__name__}: the message is {message!r}")
        for p in net.handle.model:
            p.assign(before[p.name])
        for batch in batches[:3]:
            net.step(batch)
            witness.step(batch)
        same = bits(net) == bits(witness)
        runs.report(f"stopped: {damage.__name__}", [seconds], "s", message=message, same_bits=same)
        require(same, f"{damage.__name__}: the handle does not go on as before")
        net.close()
        witness.close()


def damage_next_launch(net: VppsTreeLstm, damage: Callable[[VppsTreeLstm, Any], None]) -> None:
    """Damage a network's next script on its way to the device."""
    machine = net.handle._engine.machine
    launch = machine.launch

    def damaged(script: Any, *sequel: Any) -> None:
        script = script.copy()  # the original may already be in transfer
        damage(net, script)
        machine.launch = launch  # type: ignore[method-assign]
        launch(script, *sequel)

    machine.launch = damaged  # type: ignore[method-assign]


def main() -> None:
    """Run the requested check."""
    questions = {"launches": launches, "two": two, "abort": abort}
    parser = harness.parser(
        __doc__, trees=None, device="cuda", batch_size=4, limit=64, hidden=256, embedding=256, vps=None
    )
    parser.add_argument("question", choices=questions)
    parser.add_argument("--launches", type=int, default=10_000, help="steps of the long run; `two` makes 1/100")
    options = parser.parse_args()
    questions[options.question](Runs(options))


if __name__ == "__main__":
    main()
