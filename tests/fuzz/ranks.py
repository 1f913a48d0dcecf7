"""Training on several ranks, killed at random instants and restarted until it is complete.

    scripts/fuzz ranks --kills 300 [--seed S]

A rank raises an exception, is killed, or is stopped. Then all must end in time, and the checkpoint must be whole. The
number of ranks changes each time. The final weights must be bit-identical to those of undisturbed training.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom
from types import FrameType

import numpy as np

import vpps
import vpps.distributed
from tests.distributed import ranks

CALLS = 600
SAVED = 7
"""Calls between checkpoints, at which gradients may be accumulated."""
SHARDS, EXAMPLES, WIDTH, WORDS = 6, 9, 16, 30
TIMEOUT = 3.0
"""Seconds that ranks wait for a stopped one."""
LATE = 8.0
"""Further seconds after which ranks count as hanging, on a busy machine."""
LONGEST = 1.5
"""Most seconds until a rank fails; training from the first call on takes longer."""
SIGNALS = {"exception": signal.SIGUSR1, "SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
BEGUN = "begun"


def train(world: vpps.distributed.World, path: Path) -> str:
    """Train from the checkpoint, if it exists, to the end; returns the digest of the state."""
    model = vpps.Model.load(path) if path.exists() else vpps.Model(seed=4)
    if "W" not in model:
        model.parameter("W", (WIDTH, WIDTH))
        model.lookup("E", (WORDS, WIDTH))
    W, E = model["W"], model["E"]
    assert isinstance(E, vpps.Lookup)
    with vpps.Handle(model, vpps.Adam(0.01), target="cpu", vps=1, clip_norm=1.0, ema=0.9, world=world) as handle:
        for call in range(int(model.metadata.get("calls", "0")), CALLS):
            random = np.random.default_rng(call)
            words, classes = random.integers(0, WORDS, EXAMPLES), random.integers(0, WIDTH, EXAMPLES)
            for shard in world.mine:
                graph = vpps.Graph()
                mine = range(shard * EXAMPLES // SHARDS, (shard + 1) * EXAMPLES // SHARDS)
                states = [W @ vpps.dropout(graph.lookup(E, int(words[i])), 0.3) for i in mine]
                losses = [vpps.cross_entropy(h, int(classes[i])) for h, i in zip(states, mine, strict=True)]
                handle.fb(graph, vpps.sum(losses), accumulate=call % 3 != 2)
            if call % SAVED == SAVED - 1 or call == CALLS - 1:
                if world.is_first:
                    model.save(path, {"calls": str(call + 1)})
                world.barrier()
    (digest,) = set(world.gather(digest_of(model)))
    return digest


def digest_of(model: vpps.Model) -> str:
    """Return the digest of weights, moments and averages."""
    digest = hashlib.sha256(repr(model.step).encode())
    state = model.optimizer_state
    assert state is not None
    for p in model:
        for array in (p.host, *(moments[p.name] for moments in state.moments.values())):
            digest.update(array.tobytes())
    with model.averaged():
        for p in model:
            digest.update(p.host.tobytes())
    return digest.hexdigest()


def rank(path: Path) -> None:
    """Run a single rank."""
    signal.signal(signal.SIGUSR1, _fail)
    with vpps.distributed.init(shards=SHARDS, timeout=TIMEOUT, check_every=20) as world:
        if world.is_first:
            print(BEGUN, flush=True)
        digest = train(world, path)
        if world.is_first:
            print(digest, flush=True)
    if world.is_first:
        _parted(path).touch()


def _parted(path: Path) -> Path:
    """Return the path of the file that marks a closed world."""
    return path.with_suffix(".parted")


def _fail(signum: int, frame: FrameType | None) -> None:
    raise ValueError("at a random instant")


def disturbed(random: Random, path: Path, kind: str) -> tuple[ranks.ProgramResult, bool]:
    """Run a training with a failing rank; returns its end, and True if the failure caused it. Raises AssertionError if
    it hangs.

    If a rank is stopped before the world exists, the others wait in MPI's start-up, which has no timeout.
    """
    process = ranks.start("mpiexec", random.choice((2, 3)), "tests.fuzz.ranks", "--rank", path)
    if kind == "SIGSTOP" or random.random() < 0.8:
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(random.uniform(0, LONGEST))
    begun = time.monotonic()
    alive = [pid for pid in ranks.descendants(process.pid) if _is_rank(pid)]
    if alive:
        chosen = random.choice(alive)
        os.kill(chosen, SIGNALS[kind])
        if kind == "SIGSTOP":
            _let_others_end(chosen, alive, path)
    ended = ranks.finish(process, TIMEOUT + LATE)
    return ended._replace(seconds=time.monotonic() - begun), bool(alive)


def _let_others_end(stopped: int, alive: list[int], path: Path) -> None:
    """Continue a stopped rank after all others had time to end. Then only the launcher waits for it, or MPI's shutdown,
    which can come at any time after the world is closed."""
    until = time.monotonic() + TIMEOUT + LATE
    while any(_is_rank(pid) for pid in alive if pid != stopped) and time.monotonic() < until:
        if _parted(path).exists():
            break
        time.sleep(0.01)
    if time.monotonic() < until:
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)


def _is_rank(pid: int) -> bool:
    try:
        called = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return Path(os.fsdecode(called[0])).name.startswith("python")


def main(arguments: list[str]) -> int:
    """Disturb as often as requested; returns 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz ranks", description="Ranks that fail at random instants.")
    parser.add_argument("--kills", type=int, default=30, help="number of failures (default 30)")
    parser.add_argument("--seed", type=int, help="seed of all of them (default: a new one each time)")
    given = parser.parse_args(arguments)
    seed = SystemRandom().randrange(10**6) if given.seed is None else given.seed
    random, kills, found = Random(seed), Counter[str](), 0
    latest, trainings = dict.fromkeys(SIGNALS, 0.0), 0
    with tempfile.TemporaryDirectory() as folder:
        with vpps.distributed.init("alone", shards=SHARDS) as world:
            expected = train(world, Path(folder) / "undisturbed")
        while kills.total() < given.kills and found < 5:
            kind, path = random.choice(list(SIGNALS)), Path(folder) / str(trainings)
            try:
                ended, came = disturbed(random, path, kind)
            except AssertionError as hang:
                ended, came = ranks.ProgramResult(-1, "", str(hang), math.inf), True
            trainings += ended.status == 0
            if ended.status:
                kills[kind] += 1
                latest[kind] = max(latest[kind], ended.seconds)
            if wrong := _finding(ended, came, expected):
                found += 1
                print(f"{kind}: {wrong}\n{ended.out}\n{ended.err}\n{100 * '-'}")
            if kills.total() % 10 == 0 and ended.status:
                told = ", ".join(f"{n} x {k} (at most {latest[k]:.1f} s)" for k, n in kills.items())
                print(f"seed {seed}: {trainings} trainings, {told}; {found} findings", flush=True)
    return 1 if found else 0


def _finding(ended: ranks.ProgramResult, came: bool, expected: str) -> str:
    """Return the finding in an end, if any."""
    if ended.status == 0:
        return "" if ended.out.split()[-1:] == [expected] else "it does not end as the undisturbed training"
    if math.isinf(ended.seconds):
        return "ranks hang"
    if not came:
        return "it fails by itself"
    return "more than one rank speaks" if ended.err.count("all ranks end") > 1 else ""


if __name__ == "__main__":  # started as a rank
    rank(Path(sys.argv[2]))
