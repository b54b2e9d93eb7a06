"""What tests counted is said at the end, whether they passed or not."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for every test that recorded properties."""
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        if report.when == "call" and report.user_properties:
            counted = ", ".join(f"{name} {value}" for name, value in report.user_properties)
            terminalreporter.write_line(f"{report.nodeid}: {counted}")
