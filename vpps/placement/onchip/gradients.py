"""Where weight gradients are gathered.

tiles: in memory, by all blocks (`templates/cuda/tiles.cuh`). The choice, except for the published scheme (VPPS, section
    III-C1), rows in turns on one group of blocks: there the chip keeps gradients if they fit.
overlay: weight gradients run last, when nothing is multiplied by W any more, and the update finds W in memory: G takes
    the place of W. Of fragments, which may take less than G, they take that of all W and W^T.
registers: G has a place of its own beside W and W^T; to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping

from vpps.errors import CapacityError
from vpps.placement.onchip.holding import PERSISTENT, Gradients, MatrixSpec, MatrixUse, Place


def choose_gradients(
    matrices: tuple[MatrixSpec, ...],
    uses: Mapping[str, MatrixUse],
    places: Mapping[str, Place],
    forced: str,
    may_stay: bool,
) -> tuple[Gradients, dict[str, Gradients]]:
    """(strategy of the kernel, strategy of each trained matrix).

    Args:
        may_stay: whether the chip may keep gradients (`SlotRequest.may_keep_gradients`).

    Raises:
        CapacityError: the forced strategy does not fit; says by how much, and what does.
    """
    trained = [m for m in matrices if m.trained]
    if not trained:
        return "none", {}
    strategy: Gradients
    if forced in PERSISTENT:
        strategy = "overlay" if forced == "overlay" else "registers"
        _check_forced(strategy, uses)
    elif not may_stay or not any(use.gradients for use in uses.values()):
        strategy = "tiles"
    else:
        strategy = "overlay"
    of_matrix: dict[str, Gradients] = {}
    for m in trained:
        place = places[m.name]
        if place.tier in uses and uses[place.tier].fits(strategy):
            of_matrix[m.name] = strategy
        else:
            of_matrix[m.name] = "tiles"
    return strategy, of_matrix


def _check_forced(strategy: Gradients, uses: Mapping[str, MatrixUse]) -> None:
    if not any(use.gradients for use in uses.values()):
        raise CapacityError(
            f"gradients={strategy!r}: no trained matrix is on the chip, so there is nothing that its gradient could "
            "stay beside; leave gradients to 'auto'"
        )
    for tier, use in uses.items():
        if use.fits(strategy):
            continue
        unit = "registers of each thread" if tier == "registers" else "KiB of shared memory"
        total = use.total(strategy)
        others: list[Gradients] = ["overlay", "tiles"]
        others = [s for s in others if s != strategy and all(u.fits(s) for u in uses.values())]
        advice = f"gradients={others[0]!r} fits"
        if strategy == "registers" and use.weights + use.gradients <= use.budget:
            advice += ", and so does this one without copies of transposes (transposed='atomic')"
        raise CapacityError(
            f"gradients={strategy!r} does not fit: weights take {use.weights}, transposes {use.transposes} and "
            f"gradients {use.gradients} {unit}, {total} {'together' if strategy == 'registers' else 'in turn'}, and "
            f"there are {use.budget}; {advice}"
        )
