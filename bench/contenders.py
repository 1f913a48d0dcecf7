"""The programs that workloads.py compares. Each runs in its own process and takes requests over a pipe.

Separate processes are needed because MKL's code path and DyNet's pools are per-process settings, and to measure memory.
Only one works at a time: the others block in a read. Requests and answers are a JSON object per line: {"do": METHOD,
...arguments} -> {"result": ...} or {"error": text}.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
from matvec import MATRIX, WORK, X, Y, call_rate, script_rate
from workload_tasks import make_task, sizes_of

import vpps

SAMPLE = 4096  # number of output values compared
MEASUREMENTS = 5  # measurements per product


@dataclass(frozen=True)
class Form:
    """The program that a contender runs.

    Attributes:
        name: one of `workers.FORMS`.
        infers: True to compute outputs only; False to train by SGD.
        batch_size: examples per mini-batch.
    """

    name: str
    infers: bool
    lr: float
    batch_size: int
    threads: int


class Contender(ABC):
    """A program that trains or evaluates a task, starting from the initial weights."""

    def __init__(self, task: Any, form: Form) -> None:
        self.task, self.form = task, form

    @abstractmethod
    def step(self, batch: Any) -> None:
        """Train on a prepared mini-batch; may return before it is done."""

    @abstractmethod
    def last_loss(self) -> float:
        """Wait for the latest step and return its loss."""

    @abstractmethod
    def infer(self, batch: Any) -> Any:
        """Return the complete outputs of a mini-batch."""

    @staticmethod
    @abstractmethod
    def product(rows: int, columns: int, n: int) -> float:
        """Return the best GFLOP/s of a few measurements: a matrix times n vectors, as such programs multiply."""

    def prepare(self, indices: Any) -> Any:
        """Convert indices of examples to the argument of `step`: a data loader's work, outside the timing."""
        return indices

    def close(self) -> None:  # noqa: B027  most have nothing to do
        """Free memory that Python does not manage."""


class Vpps(Contender):
    """vpps as a user runs it."""

    def __init__(self, task: Any, form: Form) -> None:
        super().__init__(task, form)
        rule = vpps.SGD(lr=form.lr)
        self.handle = vpps.Handle(task.model, rule, target="cpu", vps=form.threads, train=not form.infers)

    def step(self, batch: Any) -> None:
        batch = self.task.train[batch]
        graph = vpps.Graph()
        self.handle.fb(graph, self.task.loss(graph, batch) * (1.0 / len(batch)))

    def last_loss(self) -> float:
        return self.handle.sync_get_latest_loss()

    def infer(self, batch: Any) -> Any:
        graph = vpps.Graph()
        (values,) = self.handle.forward(graph, [self.task.outputs(graph, self.task.train[batch])])
        return values

    @staticmethod
    def product(rows: int, columns: int, n: int) -> float:
        from vpps.runtime.cpu import CpuMachine
        from vpps.script.encode import direct

        machine = CpuMachine(1)
        machine.reserve(1 << 24, 0)
        machine.pool[:] = np.random.default_rng(0).normal(size=1 << 24).astype(np.float32) * 0.01
        machine.pool[0] = 0
        measure = script_rate(
            machine, "matvec", n, rows, 2.0 * rows * columns * n,
            dst=direct(Y, rows), bias=direct(0, 0, True), weights=MATRIX, columns=columns, matrix=0,
            x=[(direct(X, columns), columns)],
        )  # fmt: skip
        best = max(measure() for _ in range(MEASUREMENTS))
        machine.close()
        return best

    def close(self) -> None:
        self.handle.close()


class Torch(Contender):
    """PyTorch, batched manually or vertex by vertex."""

    def __init__(self, task: Any, form: Form) -> None:
        super().__init__(task, form)
        import torch
        from peers.torch_zoo import PROGRAMS

        torch.set_num_threads(form.threads)
        self.program = _program(PROGRAMS, task, "torch_zoo")(task, per_node=form.name == "torch-per-node")
        self.program.train_with("sgd", form.lr)

    def step(self, batch: Any) -> None:
        self.program.step(self.task.train[batch])

    def last_loss(self) -> float:
        return self.program.last_loss()

    def infer(self, batch: Any) -> Any:
        return self.program.infer(self.task.train[batch]).numpy()

    @staticmethod
    def product(rows: int, columns: int, n: int) -> float:
        import torch

        torch.set_num_threads(1)
        W, X = torch.rand(rows, columns), torch.rand(n, columns)
        flops = 2.0 * rows * columns * n
        return max(call_rate(lambda: torch.nn.functional.linear(X, W), flops) for _ in range(MEASUREMENTS))


class Dynet(Contender):
    """DyNet with its automatic batching."""

    def __init__(self, task: Any, form: Form) -> None:
        super().__init__(task, form)
        from peers.dynet_zoo import PROGRAMS

        strategy = form.name.rpartition("-")[2]
        self.program = _program(PROGRAMS, task, "dynet_zoo")(task, form.batch_size, strategy)
        self.program.train_with("sgd", form.lr)

    def prepare(self, indices: Any) -> Any:
        return self.program.prepare(self.task.train[indices])

    def step(self, batch: Any) -> None:
        self.program.step(batch)

    def last_loss(self) -> float:
        return self.program.last_loss()

    def infer(self, batch: Any) -> Any:
        return self.program.infer(batch)

    @staticmethod
    def product(rows: int, columns: int, n: int) -> float:
        from peers.dynet_zoo.program import start

        dynet = start()
        collection = dynet.ParameterCollection()
        W = collection.add_parameters((rows, columns))
        X = collection.add_parameters((columns, n))
        flops = 2.0 * rows * columns * n
        repeats = max(1, int(WORK / flops))

        def measure() -> float:
            dynet.renew_cg(autobatching=False)
            (W * X).forward()  # copies W and X, as in every graph
            products = [W * X for _ in range(repeats)]
            start = time.perf_counter()
            products[-1].forward()  # also runs all earlier products
            return flops * repeats / (time.perf_counter() - start) / 1e9

        return max(measure() for _ in range(MEASUREMENTS))


KINDS: dict[str, type[Contender]] = {"vpps": Vpps, "torch": Torch, "dynet": Dynet}


class MissingProgramError(Exception):
    """Raised if a task has no program of this kind."""


def _program(programs: Mapping[str, Any], task: Any, folder: str) -> Any:
    """Return the class of a task's program."""
    if task.name not in programs:
        raise MissingProgramError(f"bench/peers/{folder} has no program for {task.name}")
    return programs[task.name]


class Server:
    """The requests that a contender's process answers: every method but `serve`."""

    task: Any

    def __init__(self) -> None:
        self.contenders: dict[str, Contender] = {}
        self.batches: dict[str, list[Any]] = {}

    def start(
        self, kind: str, task: str, data: str | None, hidden: int | None, embedding: int | None, limit: int,
        keep_memory: bool, dynet_megabytes: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Read the data and make the weights. Returns the sizes of both."""
        if keep_memory:
            harness.keep_freed_memory()
        self.kind = KINDS[kind]
        if kind == "dynet":
            from peers.dynet_zoo.program import POOLS, start

            start(POOLS._replace(forward=dynet_megabytes, backward=dynet_megabytes))
        self.task = make_task(task, Path(data) if data else None, hidden, embedding, limit)
        self.initial = self.task.model.numpy()
        dense = [p.shape for p in self.task.model if type(p) is vpps.Parameter and len(p.shape) == 2]
        return {
            "description": self.task.description,
            "sizes": sizes_of(self.task),
            "examples": len(self.task.train),
            "largest_matrix": max(dense, key=lambda shape: shape[0] * shape[1], default=None),
        }

    def begin(self, form: dict[str, Any], batches: list[list[int]]) -> list[tuple[int, int]]:
        """Make a new program, with the initial weights.

        Args:
            form: the fields of a `Form`.
            batches: indices of examples.

        Returns:
            The numbers of examples and vertices in each batch.
        """
        made = Form(**form)
        if former := self.contenders.pop(made.name, None):
            former.close()
        for parameter in self.task.model:
            parameter.assign(self.initial[parameter.name])
        contender = self.contenders[made.name] = self.kind(self.task, made)
        indices = [np.array(batch) for batch in batches]
        self.batches[made.name] = [contender.prepare(batch) for batch in indices]
        given = [self.task.train[batch] for batch in indices]
        return [(len(b), int(getattr(b, "n_vertices", 0)) or self.task.units(b)) for b in given]

    def check(self, name: str, n: int) -> list[list[float]]:
        """Return the values that must be equal for all: losses (each after an update), or outputs (up to SAMPLE)."""
        contender, results = self.contenders[name], []
        for batch in self._first(name, n):
            if contender.form.infers:
                values = np.asarray(contender.infer(batch)).reshape(-1)
                results.append(values[:: -(-len(values) // SAMPLE)].tolist())
            else:
                contender.step(batch)
                results.append([contender.last_loss()])
        return results

    def run(self, name: str, n: int) -> float:
        """Return the seconds taken by n mini-batches."""
        contender, batches = self.contenders[name], self._first(name, n)
        act = contender.infer if contender.form.infers else contender.step
        gc.collect()
        start = time.perf_counter()
        for batch in batches:
            act(batch)
        if not contender.form.infers:
            contender.last_loss()
        return time.perf_counter() - start

    def _first(self, name: str, n: int) -> list[Any]:
        """Return n mini-batches, repeating them if there are fewer."""
        batches = self.batches[name]
        return [batches[k % len(batches)] for k in range(n)]

    def product(self, rows: int, columns: int, n: int) -> float:
        """Return the GFLOP/s of a matrix times n vectors."""
        return self.kind.product(rows, columns, n)

    def version(self) -> str | None:
        """Return the build's version, if package versions do not identify it."""
        return getattr(sys.modules.get("dynet"), "__gitversion__", None)

    def forget_peak(self) -> float:
        """Return the MB resident now, and reset the peak to it."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # man 5 proc: resets the peak
        return _status("VmRSS")

    def peak(self) -> float:
        """Return the peak of resident MB since `forget_peak`."""
        return _status("VmHWM")

    def serve(self) -> None:
        """Answer until the pipe is closed."""
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # so that output of libraries is not taken for an answer
        for line in sys.stdin:
            request = json.loads(line)
            method = getattr(self, request.pop("do"))
            try:
                answer = {"result": method(**request)}
            except Exception as error:  # the requester gets the error and continues without this contender
                if not isinstance(error, MissingProgramError):
                    traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


def _status(name: str) -> float:
    """Return a field of /proc/self/status, in MB of 10^6 bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


if __name__ == "__main__":
    Server().serve()
