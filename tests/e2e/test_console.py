"""What is printed where there is no terminal, and what follows an interrupted deployment."""

from __future__ import annotations

import time

import pytest

from localcloud import console, deploy
from localcloud.engine import api as engine


def test_a_long_message_is_told_in_full_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "REMINDER_SECONDS", 0.0)
    message, printed = "waiting " * 40, ""
    with console.Console(plain=True).step("Slurm ready") as say:
        say(message)
        while " … (" not in printed:
            time.sleep(0.05)
            printed += capsys.readouterr().out
    assert printed.count(message) == 1
    reminder = next(line for line in printed.splitlines() if " … (" in line)
    assert len(reminder) < 140


def test_columns_stand_under_their_titles_and_lines_end_without_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    console.Console(plain=True).table(("name", "pod [x]"), [("a-long-name", "p"), ("b", "q")])
    assert capsys.readouterr().out == "  name         pod [x]\n  a-long-name  p\n  b            q\n"


def test_an_interrupted_deployment_is_not_called_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "run", lambda *_, **__: engine.Result(130, {}, {}, {}))
    with pytest.raises(KeyboardInterrupt):
        deploy.deploy(console.Console(plain=True), "local", {})
