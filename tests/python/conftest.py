"""Counts the tests that ran on real models, and says where these are missing; writes the figures of `MQQ_RECORD=1`."""

import expected
from support import ZOO


def pytest_configure(config):
    config.addinivalue_line("markers", "real_models: runs on the models of MQQ_ZOO")


def pytest_runtest_logreport(report):
    if report.when == "call" and "real_models" in report.keywords:
        COUNT[report.outcome] += 1
    elif report.when == "setup" and report.skipped and "real_models" in report.keywords:
        COUNT["skipped"] += 1


def pytest_sessionfinish():
    expected.write()


COUNT = {"passed": 0, "failed": 0, "skipped": 0}


def pytest_terminal_summary(terminalreporter):
    ran = COUNT["passed"] + COUNT["failed"]
    if ran:
        terminalreporter.write_line(f"real models: {ran} tests")
    if COUNT["skipped"]:
        where = "" if (ZOO / "models").is_dir() else f", none at {ZOO}"
        terminalreporter.write_line(f"real models: {COUNT['skipped']} tests skipped{where}")
