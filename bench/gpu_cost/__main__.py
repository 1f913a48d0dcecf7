"""Entry point of `python bench/gpu_cost`: see cost.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the benchmarks' folder instead of this folder

from gpu_cost.cost import main  # noqa: E402

if __name__ == "__main__":
    main()
