"""What would make launches faster: rules over a summary, each with the figure that it goes by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpps.report.critical import BARRIERS
from vpps.targets import TARGETS

if TYPE_CHECKING:
    from vpps.report.summary import Summary

PROGRAM, BEGINNING = "program", "beginning"  # parts of the gaps between launches

# From when on a rule speaks: shares, ratios.
WAITING = 0.25
PASSING = 0.15  # of the critical path
UNDISTURBED = 200e-6  # seconds in which threads pass a barrier even if they sleep
STRAGGLER = 1.25  # its time at work over the mean
LATE = 2.0  # its being waited for over that of all others together
FEW_ROWS = 8
FEW_VECTORS = 64
NARROW = 0.6
CELL = 0.1
UPDATE = 0.25
LOAD = 0.2
IDLE = 0.2


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that would help.

    Attributes:
        finding: what was seen, with the figure.
        remedy: what to try.
        seconds: that it is about, of the critical path or of a virtual processor; what can be gained is less.
    """

    finding: str
    remedy: str
    seconds: float


def advise(summary: Summary) -> list[Advice]:
    """All that the rules find, what most time is about first."""
    if not summary.busy:
        return []
    rules: tuple[Callable[[Summary], Iterable[Advice]], ...] = (
        _idle_between, _straggler, _barriers, _waiting, _few_rows, _narrow, _update, _load,
    )  # fmt: skip
    return sorted((found for rule in rules for found in rule(summary)), key=lambda a: -a.seconds)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _idle_between(s: Summary) -> Iterator[Advice]:
    """Nothing runs between launches: the host, or what it waits for, takes long beside the kernel."""
    total = s.seconds + s.idle
    if s.launches < 2 or s.idle < IDLE * total or TARGETS[s.target].is_emulated:
        return
    program = s.gaps[PROGRAM]
    wakes = s.gaps["waiting"] + s.gaps[BEGINNING]
    prepares = s.idle - program - wakes
    n = s.launches - 1
    if program >= max(wakes, prepares):
        why = f"in {_micro(program / n)} of it the program had not asked for the next one yet"
        remedy = (
            "record the next graph while a launch runs (fb returns at once; do not read its loss in between), and "
            "record graphs in bulk: graph.map over a vpps.data.GraphSet"
        )
    elif wakes >= prepares:
        why = f"in {_micro(wakes / n)} of it the host, or a virtual processor, waited to go on"
        remedy = "launches are short beside that: a larger batch"
        if not TARGETS[s.target].is_gpu:
            remedy = (
                "other programs, or more virtual processors than free cores, keep threads from their cores: end other "
                "work, or use fewer (vps=); where none do, launches are short beside that: a larger batch"
            )
    else:
        host = sum(seconds for name, seconds in s.host.items() if name != "waiting") / s.launches
        why = f"vpps's planning and launching takes {_micro(host)} per launch, {_micro(prepares / n)} of it then"
        remedy = (
            "a larger batch has more work per launch; graphs that are asked for before the launch before has ended are "
            "planned while it runs"
        )
    yield Advice(
        f"no launch runs for {_percent(s.idle / total)} of the time: {_micro(s.idle / n)} between one launch and "
        f"the next; {why}",
        remedy,
        s.idle,
    )


def _straggler(s: Summary) -> Iterator[Advice]:
    """One virtual processor has more to do, or is slower, than the others."""
    if len(s.vps) < 2:
        return
    last = max(s.vps, key=lambda vp: vp.delayed)
    others = sum(vp.delayed for vp in s.vps) - last.delayed
    if last.delayed < WAITING * s.seconds or last.delayed < LATE * others:
        return
    more = last.busy * len(s.vps) / s.busy
    why = (
        f"it works {more:.2f} times as long as the mean: work is divided unevenly; try another number of virtual "
        "processors (vps=), one that divides the hidden size by the panel"
        if more > STRAGGLER
        else f"it works {more:.2f} times as long as the mean, so it is late rather than loaded: another process, or "
        "Python, may take its core; use one virtual processor less (vps=) or pin the process"
    )
    yield Advice(
        f"VP {last.vp} is waited for: it comes last at {last.awaited} waits, and others wait "
        f"{_micro(last.delayed)} for it",
        why,
        last.delayed / (len(s.vps) - 1),
    )


def _barriers(s: Summary) -> Iterator[Advice]:
    """Passing barriers takes long beside the work between them."""
    found = next((p for p in s.critical if p.name == BARRIERS), None)
    if found is None or not s.barriers or found.share < PASSING:
        return
    each, between = found.seconds / s.barriers, (s.seconds - found.seconds) / s.barriers
    remedy = (
        "a larger batch has more work between the same number of barriers, fewer virtual processors (vps=) pass them "
        "faster"
    )
    if not TARGETS[s.target].is_gpu and each > UNDISTURBED:
        remedy = (
            "threads that have a core each take some microseconds: cores are taken by something else, or there are "
            "more virtual processors than free cores; end other work, or use fewer (vps=)"
        )
    yield Advice(
        f"passing barriers is {_percent(found.share)} of the critical path: {_micro(each)} each, for "
        f"{_micro(between)} of work in between",
        remedy,
        found.seconds,
    )


def _waiting(s: Summary) -> Iterator[Advice]:
    """Much waiting that no other rule explains."""
    share = s.shares["waiting"]
    if len(s.vps) < 2 or share < WAITING or any(_straggler(s)) or any(_barriers(s)):
        return
    yield Advice(
        f"virtual processors wait for {_percent(share)} of their time; the busiest works {s.imbalance:.2f} times "
        "as long as the mean",
        "levels have too little to divide: a larger batch, policy='depth' if levels are narrow, or fewer virtual "
        "processors (vps=)",
        share * s.seconds,
    )


def _few_rows(s: Summary) -> Iterator[Advice]:
    """Weights are read for few vectors."""
    for c in s.cells:
        if c.share > CELL and 0 < c.rows_per_product < FEW_ROWS:
            read = f"({c.bytes / 1e6:.1f} MB of weights, gradients and moments in {_micro(c.seconds)})"
            again = f", so that weights are read again and again {read}" if c.bytes else ""  # none are on the chip
            yield Advice(
                f"{c.name}: its products meet {c.rows_per_product:.1f} vectors on average{again}",
                "a larger batch, or a policy that makes larger steps (`vpps-inspect plan` says how many batches each "
                "policy makes)",
                c.critical,
            )


def _narrow(s: Summary) -> Iterator[Advice]:
    """A cell whose results are too narrow to be divided."""
    for c in s.cells:
        if len(s.vps) > 1 and c.share > CELL and c.balance < NARROW:
            yield Advice(
                f"{c.name}: virtual processors share its instructions unevenly; on average they have "
                f"{_percent(c.balance)} of what the busiest has",
                "its results are too narrow, or its rows too few, for so many virtual processors: larger hidden sizes "
                "and batches divide better; else fewer of them (vps=)",
                c.critical * (1 - c.balance),
            )


def _update(s: Summary) -> Iterator[Advice]:
    """The end of the launch costs much. Gradient products that make steps count where they sum over so few vectors that
    reading and writing weights and moments is most of their work."""
    apart = sum(vp.update for vp in s.vps)
    with_gradients = s.steps if s.vectors_per_step < FEW_VECTORS else 0.0
    if apart + with_gradients < UPDATE * s.busy:
        return
    what = "updates take"
    if with_gradients:
        what = f"updates, and gradients of {s.vectors_per_step:.0f} vectors that are made with them, take"
    yield Advice(
        f"{what} {_percent((apart + with_gradients) / s.busy)} of the time at work",
        "weights and moments are read and written once per update, however large the batch: a larger batch, or "
        "fb(accumulate=True) for several batches per update",
        (apart + with_gradients) / len(s.vps),
    )


def _load(s: Summary) -> Iterator[Advice]:
    """Weights come to the chip for every launch."""
    load = sum(vp.load for vp in s.vps)
    if load < LOAD * s.busy:
        return
    yield Advice(
        f"loading weights to the chip takes {_percent(load / s.busy)} of the time at work",
        "it is done once per launch, however large the batch: a larger batch",
        load / len(s.vps),
    )
