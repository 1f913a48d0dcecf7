"""`vpps-train`: trains the models of vpps.zoo. One command per task; what they share is in `loop.py`."""

from __future__ import annotations

import typer

from vpps.cli import tree_lstm

app = typer.Typer(name="vpps-train", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def about() -> None:
    """Train dynamic neural networks, one kernel launch per mini-batch."""


app.command("tree-lstm")(tree_lstm.command)


def main() -> None:
    """Entry point. Exit code 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C."""
    app()
