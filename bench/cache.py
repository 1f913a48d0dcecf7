"""Milliseconds until a compiled kernel is there that the cache has, in a process that was just started.

    python bench/cache.py [--rounds 15] >> cache.jsonl

Every round is a new process with a warm cache of its own. Lines:

    find   the entry by its key: record read, binary and source compared with their digests, marked as used
    load   `dlopen` of the library, which a handle needs with or without a cache
    again  finding it once more in the same process: files that were not touched since are not read again
    key    what it takes to know the key: rendering the source and asking the compiler for its version
    list   what `vpps-cache list` looks at, of a cache of `entries` entries of this size

The budget of a hit is 10 ms: `find` and `load` together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import harness

BENCH = "cache"
CASES = ("find", "load", "again", "key")

ROUND = """
import json, time
from vpps.kernel import cache, host_compiler

seconds = {}
start = time.perf_counter()

def timed(name, work):
    begin = time.perf_counter()
    result = work()
    seconds[name] = time.perf_counter() - begin
    return result

original, requests = host_compiler.cached, []
host_compiler.cached = lambda *arguments, **options: requests.append((arguments, options)) or cache.key_of()
host_compiler.build_cpu()
seconds["key"] = time.perf_counter() - start
(arguments, options), = requests
path = timed("find", lambda: original(*arguments, **options))
timed("load", lambda: cache.load_library(path))
timed("again", lambda: original(*arguments, **options))
print(json.dumps(seconds | {"bytes": path.stat().st_size}))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--entries", type=int, default=500, help="of the cache that is listed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"VPPS_CACHE_DIR": folder}
        _run("from vpps.kernel.host_compiler import build_cpu; build_cpu()", environment)
        rounds = [json.loads(_run(ROUND, environment)) for _ in range(options.rounds)]
        size = rounds[0]["bytes"]
        for case in CASES:
            values = [1e3 * each[case] for each in rounds]
            harness.report(BENCH, case, values, "ms", worst=round(max(values), 3), bytes=size)
    hits = [1e3 * (each["find"] + each["load"]) for each in rounds]
    harness.report(BENCH, "hit", hits, "ms", worst=round(max(hits), 3), bytes=size)
    _list(options.entries, size)


def _list(entries: int, size: int) -> None:
    """A cache of many entries, of which all digests are compared; and of which the oldest are looked for."""
    from vpps.kernel.cache import cached, eviction, inventory

    with tempfile.TemporaryDirectory() as folder:
        os.environ["VPPS_CACHE_DIR"] = folder
        data = os.urandom(size)

        def build(text: Path, binary: Path) -> None:
            binary.write_bytes(data)

        for number in range(entries):
            place = cached(f"{number:032x}", ".so", "source", build).parent.parent
        listed, looked = [], []
        for _ in range(3):
            start = time.perf_counter()
            assert len(list(inventory.items())) == entries
            listed.append(1e3 * (time.perf_counter() - start))
            start = time.perf_counter()
            eviction.make_room(place)
            looked.append(1e3 * (time.perf_counter() - start))
    harness.report(BENCH, "list", listed, "ms", entries=entries, bytes=size)
    harness.report(BENCH, "make room", looked, "ms", entries=entries, bytes=size)


def _run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{code}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
