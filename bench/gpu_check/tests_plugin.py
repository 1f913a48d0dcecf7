"""pytest plugin of the tests stage: prints a line of JSON for each test as soon as it has ended."""

from __future__ import annotations

import json

import pytest

MESSAGE = 1500  # number of last characters kept of a failure


class Printer:
    """Prints through pytest's own terminal, bypassing its capture."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a test's call, and any set-up or tear-down that did not pass."""
        if report.when != "call" and report.passed:
            return
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
        if not report.passed:
            line |= {"when": report.when, "message": str(report.longrepr)[-MESSAGE:]}
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(json.dumps(line))


def pytest_configure(config: pytest.Config) -> None:
    """Register the printer in the reporting process, not in test workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Printer(config), "vpps-printer")
