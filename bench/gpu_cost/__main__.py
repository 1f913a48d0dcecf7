"""Entry point of `python bench/gpu_cost`: see cost.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the benches' folder instead of this one

from gpu_cost.cost import main  # noqa: E402

if __name__ == "__main__":
    main()
