"""vpps.torch's recurrent layers train in two processes as in one, and for thousands of steps in the same memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from random import Random

import pytest

import vpps
from tests.processes import finish, start

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

pytestmark = pytest.mark.cpu

TRAIN = """
import torch, vpps.torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

def trained(rank, world, path):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = torch.nn.ModuleList([vpps.torch.LSTM(3, 4, 2, bidirectional=True), vpps.torch.GRU(8, 5)])

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = net

        def forward(self, xs):
            outputs, _ = self.lstm(xs)
            return self.gru([y[-1:] for y in outputs])[1]  # one step: weight_hh has no influence

    model = both = Both()
    if world > 1:
        distributed.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=world)
        model = DistributedDataParallel(both, gradient_as_bucket_view=True)
    rule = torch.optim.AdamW(both.parameters(), lr=0.01)
    for step in range(4):
        torch.manual_seed(step)
        xs = [torch.randn(n, 3) for n in (2, 5, 1, 3)]
        rule.zero_grad()
        model(xs[rank::world]).square().mean().backward()
        rule.step()
    return both.state_dict()
"""


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Covers DistributedDataParallel over gloo: each rank has every other sequence."""
    calls = [f"trained({rank}, 2, {str(tmp_path / 'meet')!r}), {str(tmp_path / str(rank))!r}" for rank in range(2)]
    ranks = [start(f"{TRAIN}\ntorch.save({call})") for call in calls]
    for status, _, errors in map(finish, ranks):
        assert status == 0, errors
    names: dict[str, object] = {}
    exec(TRAIN, names)
    wanted = names["trained"](0, 1, "")  # type: ignore[operator]
    for rank in range(2):
        found = torch.load(tmp_path / str(rank))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_ten_thousand_steps_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has another layout than the step before; every fifth layout is new."""
    monkeypatch.setenv("VPPS_VERIFY", "0")
    net, r = vpps.torch.GRU(2, 3), Random(1)
    rule, usual = torch.optim.SGD(net.parameters(), lr=1e-3), [[n, 4 - n, 1] for n in range(4)]
    used = []
    for step in range(10_000):
        lengths = usual[step % 5 - 1] if step % 5 else [r.randint(0, 5) for _ in range(6)]
        rule.zero_grad()
        outputs, final = net([torch.ones(n, 2, requires_grad=True) for n in lengths])
        (final.sum() + torch.cat(outputs).sum()).backward()
        rule.step()
        if step in (1_000, 9_999):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            used.append((pages * os.sysconf("SC_PAGE_SIZE"), len(gc.get_objects())))
    (memory, objects), (memory_then, objects_then) = used
    assert memory_then - memory < 4 << 20
    assert objects_then - objects < 500
