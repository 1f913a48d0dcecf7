"""Calls of recurrent layers in which some initial states are not read: resets at first steps, sequences without steps.

Each case calls the layer three times, because a layer replays a layout from its second call on.
"""

from __future__ import annotations

from typing import Any

import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch import nn  # noqa: E402

pytestmark = pytest.mark.cpu


def by_step(layer: Any, x: Any, states: Any, resets: Any) -> tuple[Any, Any]:
    """Return the outputs and final states of torch.nn's layer, called step by step with masked states."""
    outputs = []
    for frame, keep in zip(x, (~resets).float()[..., None], strict=True):
        y, states = layer(frame[None], tuple(keep * s for s in states))
        outputs.append(y)
    return torch.cat(outputs), states


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("steps, share", [(1, 0.4), (1, 1.0), (5, 0.4)])
def test_states_before_a_reset_are_not_read(steps: int, share: float, learns: bool) -> None:
    torch.manual_seed(1)
    ours, peer = vpps.torch.LSTM(4, 8, num_layers=2), nn.LSTM(4, 8, num_layers=2)
    peer.load_state_dict(ours.state_dict())
    for _ in range(3):
        x, resets, given = torch.randn(steps, 6, 4), torch.rand(steps, 6) < share, torch.randn(2, 2, 6, 8)
        first, second = ([s.clone().requires_grad_(learns) for s in given] for _ in range(2))
        with torch.set_grad_enabled(learns):
            (y, found), (z, expected) = ours(x, first, resets=resets), by_step(peer, x, second, resets)
        torch.testing.assert_close([y, *found], [z, *expected], atol=1e-5, rtol=0)
        if learns:
            (y.square().sum() + sum(found).sum()).backward()
            (z.square().sum() + sum(expected).sum()).backward()
            torch.testing.assert_close([s.grad for s in first], [s.grad for s in second], atol=1e-5, rtol=1e-4)


def test_the_backward_direction_keeps_its_state_at_a_reset_of_the_first_step() -> None:
    layer, states = vpps.torch.LSTM(4, 8, bidirectional=True), torch.randn(2, 2, 3, 8)
    x, resets = torch.randn(5, 3, 4), torch.zeros(5, 3, dtype=torch.bool)
    resets[0, 1] = True
    zeroed = states.clone()
    zeroed[:, 0, 1] = 0
    for _ in range(3):
        torch.testing.assert_close(layer(x, list(states), resets=resets), layer(x, list(zeroed)), atol=0, rtol=0)


def test_resets_of_first_steps_share_a_layout() -> None:
    layer, state = vpps.torch.LSTM(4, 8), [torch.zeros(1, 6, 8)] * 2
    with torch.no_grad():
        for k in range(6):
            _, state = layer(torch.randn(1, 6, 4), state, resets=torch.arange(6)[None] == k)
    assert len(layer._stack[1]._replays) == 1


def test_sequences_without_steps_keep_their_state() -> None:
    layer, states = vpps.torch.LSTM(4, 8), torch.randn(2, 1, 3, 8)
    with torch.no_grad():
        for _ in range(3):
            sequences = [torch.randn(n, 4) for n in (2, 0, 3)]
            (y, nothing, z), final = layer(sequences, list(states))
            torch.testing.assert_close([s[:, 1] for s in final], [s[:, 1] for s in states], atol=0, rtol=0)
            assert nothing.shape == (0, 8)
            for k, outputs in ((0, y), (2, z)):
                expected, _ = layer(sequences[k][:, None], [s[:, k : k + 1].contiguous() for s in states])
                torch.testing.assert_close(outputs, expected[:, 0], atol=1e-6, rtol=0)
