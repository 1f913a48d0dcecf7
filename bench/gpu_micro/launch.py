"""Loading a cubin, the first launch, launches in the steady state, and copies of scripts.

Microseconds. Lines named "host" are wall clock of the host thread: until the call has returned ("enqueue") or the
device has finished ("and wait"). Lines named "device" are taken between events, behind a delay that hides the host.
Launch paths: cuda.bindings with arguments packed at every launch and packed once, and CuPy. "step" is what
one mini-batch costs when there is nothing to compute: copy the script from pinned memory, launch cooperatively, read
four bytes back. `floor` of a copy: bytes over the bandwidth of an 11 MB copy from pinned memory, measured here.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable

import numpy as np
from device import THREADS, Build, Device, Kernel, Report, checked, run
from slots import Slot

BENCH = "gpu_launch"
SIZES = {"30 KB": 30_000, "1 MB": 1_000_000, "11 MB": 11_000_000}
MANY = 20  # launches between two events: they are enqueued within the delay
EMPTY = Build("ceilings.cu", "empty")
# All registers, to load a binary as large as a real kernel's.
LARGE = Slot(12, 16, 1, 2).build("matvec.cu", "matvec")
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind


def builds(quick: bool) -> list[Build]:
    """An empty kernel and a large one."""
    return [EMPTY, LARGE]


def wall(device: Device, work: Callable[[], object], rounds: int, wait: bool, times: int = 1) -> list[float]:
    """Microseconds of the host's clock per call of `work`, `times` calls at a go, from an idle device on."""
    found = []
    for _ in range(rounds):
        device.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            work()
        if wait:
            device.synchronize()
        found.append(1e6 * (time.perf_counter() - start) / times)
    device.synchronize()
    return found


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """All of it."""
    loading(device, report, options.rounds)
    launching(device, report, options.rounds)
    copying(device, report, options.rounds)
    steps(device, report, options.rounds)


def loading(device: Device, report: Report, rounds: int) -> None:
    """From a cubin in memory to the first results."""
    from cuda.bindings import driver

    cubin = LARGE.compile(device.arch).cubin
    x, word = device.zeros(16), device.zeros(1)
    load, first, second = [], [], []
    for _ in range(rounds):
        device.synchronize()
        start = time.perf_counter()
        (module,) = checked(driver.cuModuleLoadData(cubin))
        (function,) = checked(driver.cuModuleGetFunction(module, LARGE.kernel.encode()))
        load.append(1e6 * (time.perf_counter() - start))
        # n = 0 and rows = 0: it touches nothing.
        values = (x.data.ptr, x.data.ptr, word.data.ptr, 0, 0, 2, 1, 1)
        types = (ctypes.c_void_p,) * 3 + (ctypes.c_uint,) * 5
        for times in (first, second):
            start = time.perf_counter()
            checked(
                driver.cuLaunchCooperativeKernel(
                    function, device.sms, 1, 1, THREADS, 1, 1, 16384, 0, (values, types)
                )
            )  # fmt: skip
            device.synchronize()
            times.append(1e6 * (time.perf_counter() - start))
        checked(driver.cuModuleUnload(module))
    report(f"host: load a cubin of {len(cubin) / 1e3:.0f} kB", load)
    report("host: first launch and wait", first)
    report("host: second launch and wait", second)


def launch_paths(device: Device, kernel: Kernel) -> dict[str, Callable[[], object]]:
    """Ways to launch the empty kernel on all multiprocessors."""
    from cuda.bindings import driver

    word = device.zeros(1, np.uint32)
    grid = kernel.function, device.sms, 1, 1, THREADS, 1, 1, 0, 0
    argument = ctypes.c_void_p(word.data.ptr)
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    packed = ctypes.addressof(addresses)
    paths: dict[str, Callable[[], object]] = {
        "plain, cuda.bindings": lambda: kernel(device.sms, 0, word),
        "cooperative, cuda.bindings": lambda: kernel(device.sms, 0, word, cooperative=True),
        # What `packed` points to lives as long as the function does.
        "cooperative, cuda.bindings, arguments packed once": lambda keep=(word, argument, addresses): checked(
            driver.cuLaunchCooperativeKernel(*grid, packed)
        ),
    }
    raw = device.cupy.cuda.function.Module()
    raw.load(kernel.binary.cubin)
    function = raw.get_function(EMPTY.kernel)
    paths["cooperative, CuPy"] = lambda: function(
        (device.sms,), (THREADS,), (word,), enable_cooperative_groups=True
    )  # fmt: skip
    return paths


def launching(device: Device, report: Report, rounds: int) -> None:
    """Launches of nothing."""
    for name, launch in launch_paths(device, device.load(EMPTY)).items():
        launch()
        report(f"host: enqueue a launch, {name}", wall(device, launch, rounds, wait=False, times=MANY))
        report(f"host: launch and wait, {name}", wall(device, launch, 10 * rounds, wait=True))

        def many(launch: Callable[[], object] = launch) -> None:
            for _ in range(MANY):
                launch()

        report(f"device: one of {MANY} launches, {name}", [device.microseconds(many) / MANY for _ in range(rounds)])


def copying(device: Device, report: Report, rounds: int) -> None:
    """Scripts to the device, from pinned and from pageable memory."""
    runtime = device.cupy.cuda.runtime
    largest = max(SIZES.values())
    target = device.zeros(largest, np.uint8)
    pinned = device.cupy.cuda.alloc_pinned_memory(largest)
    pageable = np.ones(largest, np.uint8)
    ctypes.memset(pinned.ptr, 1, largest)  # touch every page

    def copy(source: int, size: int) -> Callable[[], object]:
        return lambda: runtime.memcpyAsync(target.data.ptr, source, size, HOST_TO_DEVICE, 0)

    fastest = min(device.microseconds(copy(pinned.ptr, largest)) for _ in range(rounds))
    for name, size in SIZES.items():
        floor = fastest * size / largest
        for kind, source in (("pinned", pinned.ptr), ("pageable", pageable.ctypes.data)):
            work = copy(source, size)
            work()
            report(f"host: enqueue a copy, {name} {kind}", wall(device, work, rounds, wait=False))
            report(f"host: copy and wait, {name} {kind}", wall(device, work, rounds, wait=True), floor=floor)
        report(f"device: copy, {name} pinned", [device.microseconds(copy(pinned.ptr, size)) for _ in range(rounds)])
        report(
            f"host: fill pinned memory, {name}",
            wall(device, lambda size=size: ctypes.memmove(pinned.ptr, pageable.ctypes.data, size), rounds, wait=False),
        )


def steps(device: Device, report: Report, rounds: int) -> None:
    """Copy, launch, read a loss back."""
    runtime = device.cupy.cuda.runtime
    largest = max(SIZES.values())
    target, loss = device.zeros(largest, np.uint8), device.zeros(1)
    pinned, answer = (device.cupy.cuda.alloc_pinned_memory(size) for size in (largest, 4))
    launch = launch_paths(device, device.load(EMPTY))["cooperative, cuda.bindings, arguments packed once"]
    for name, size in SIZES.items():

        def step(size: int = size) -> None:
            runtime.memcpyAsync(target.data.ptr, pinned.ptr, size, HOST_TO_DEVICE, 0)
            launch()
            runtime.memcpyAsync(answer.ptr, loss.data.ptr, 4, DEVICE_TO_HOST, 0)

        step()
        report(f"host: enqueue a step, script of {name}", wall(device, step, 10 * rounds, wait=False))
        report(f"host: step and wait, script of {name}", wall(device, step, 10 * rounds, wait=True))


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
