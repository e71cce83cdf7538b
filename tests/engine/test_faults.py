"""Killed runs, two runs at once, Ctrl-C, providers that die: the state stays true, and the next run converges."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud.engine.errors import EngineError
from tests.engine.harness import Project

Until = Callable[[Callable[[], bool]], None]


def hanging(project: Project, more: str = "") -> Path:
    """A program whose create of `slow` waits, with the object there, until the returned file exists."""
    release = project.cloud.parent / "release"
    project.program(f'a = Thing("a")\nslow = Thing("slow", ref=a.name, hang="{release}")\n{more}')
    return release


def killed_in_create(project: Project, until: Until) -> Path:
    """Leaves a run killed while `slow` exists in the cloud and nobody has noted its id."""
    release = hanging(project, 'Thing("after", ref=slow.name)')
    process = project.start("up", "--yes")
    until(lambda: len(project.objects()) == 2)
    process.kill()
    process.wait()
    return release


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_killed_in_a_create_and_run_again(project: Project, until: Until) -> None:
    release = killed_in_create(project, until)
    state = project.deployment()
    assert [r["urn"].rpartition("::")[2] for r in state["resources"]][-1] == "a"  # what was done is there
    [pending] = state["pending_operations"]
    assert pending["type"] == "creating"
    assert pending["resource"]["urn"].endswith("::slow")
    provider = project.calls("create")[0]["pid"]
    until(lambda: gone(provider))  # nothing is left behind

    release.touch()
    run = project.up()
    assert run.ok, run.text
    assert "took over the lock of a run that is gone" in run.text
    assert "a run ended while it created this" in run.text
    assert len(project.objects()) == 3  # the same name was chosen: nothing was made twice
    assert "pending_operations" not in project.deployment()
    assert project.up().changes == {"same": 4}


def test_killed_in_a_create_and_destroyed(project: Project, until: Until) -> None:
    release = killed_in_create(project, until)
    release.touch()
    run = project.destroy()
    assert run.ok, run.text
    assert project.objects() == {}
    assert project.resources() == {}


def test_killed_in_a_create_that_the_program_gave_up(project: Project, until: Until) -> None:
    release = killed_in_create(project, until)
    release.touch()
    run = project.up('Thing("a")')
    assert run.ok
    assert len(project.deployment()["pending_operations"]) == 1  # still known
    assert project.run("refresh", clear_pending_creates=True).ok
    project.up('Thing("a", value=1)')
    assert "pending_operations" not in project.deployment()


@pytest.mark.parametrize("moment", [0.3, 0.5, 0.7])
def test_killed_at_any_moment(project: Project, moment: float) -> None:
    project.program("""
last = None
for i in range(12):
    last = Thing(f"t{i}", O(depends_on=[last] if last and i % 2 else None), value=i, kind="Solo" if i % 3 else "Thing")
pulumi.export("s", pulumi.Output.secret("x"))
""")
    process = project.start("up", "--yes")
    try:
        process.wait(moment * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if project.state_file.exists():
        assert project.deployment()["manifest"]
    run = project.up()
    assert run.ok, run.text
    assert len(project.objects()) == 12
    assert project.up().changes == {"same": 13}


def test_two_runs_at_once(project: Project, until: Until) -> None:
    release = hanging(project)
    process = project.start("up", "--yes")
    until(lambda: len(project.objects()) == 2)
    with pytest.raises(EngineError) as caught:
        project.up()
    assert f"process {process.pid}" in str(caught.value)
    assert "since 20" in str(caught.value)
    assert project.preview().ok  # looking is allowed
    release.touch()
    assert process.wait(30) == 0
    assert project.up().changes == {"same": 3}


def test_a_lock_of_another_machine_holds_until_it_is_cancelled(project: Project) -> None:
    folder = project.backend / ".pulumi/locks/organization/shop/dev"
    folder.mkdir(parents=True)
    other = {"pid": 1, "username": "eve", "hostname": "elsewhere", "timestamp": "2026-01-01T00:00:00Z"}
    (folder / "x.json").write_text(json.dumps(other))
    with pytest.raises(EngineError, match=r"eve@elsewhere \(process 1\) since 2026-01-01.*cancel --stack dev"):
        project.up()
    code, output = project.cli("cancel", "--stack", "dev")
    assert code == 0
    assert "eve@elsewhere" in output
    assert project.up().ok


def test_a_lock_from_before_a_reboot_is_taken_over(project: Project) -> None:
    folder = project.backend / ".pulumi/locks/organization/shop/dev"
    folder.mkdir(parents=True)
    mine = {"pid": os.getpid(), "username": "me", "hostname": os.uname().nodename, "timestamp": "t"}
    (folder / "x.json").write_text(json.dumps(mine | {"boot": "an earlier one"}))
    run = project.up()
    assert run.ok
    assert "took over the lock" in run.text


def test_interrupt_ends_what_is_under_way_and_records_it(project: Project, until: Until) -> None:
    hanging(project, 'Thing("after", ref=slow.name)')
    process = project.start("up", "--yes")
    until(lambda: len(project.objects()) == 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "stopping" in output
    assert project.calls("cancel")
    assert "a" in project.resources()
    assert "slow" not in project.resources()  # the provider said that it gave up
    assert "Traceback" not in output
    assert not list((project.backend / ".pulumi/locks/organization/shop/dev").iterdir())


def test_second_interrupt_kills(project: Project, until: Until) -> None:
    project.env["TEST_DEAF"] = "1"  # the provider does not heed Cancel
    release = hanging(project)
    process = project.start("up", "--yes")
    until(lambda: len(project.objects()) == 2)
    process.send_signal(signal.SIGINT)
    until(lambda: bool(project.calls("cancel")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert [p["type"] for p in project.deployment()["pending_operations"]] == ["creating"]
    release.touch()
    assert project.up().ok
    assert len(project.objects()) == 2


def test_provider_that_dies(project: Project, until: Until) -> None:
    release = hanging(project)
    process = project.start("up", "--yes")
    until(lambda: len(project.objects()) == 2)
    os.kill(project.calls("create")[0]["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the test provider ended while it was asked to Create" in output
    assert len(project.deployment()["pending_operations"]) == 1
    release.touch()
    assert project.up().ok
    assert len(project.objects()) == 2


def test_program_that_is_killed(project: Project, until: Until) -> None:
    release = hanging(project, f'import os\nopen("{project.cloud}/program", "w").write(str(os.getpid()))')
    process = project.start("up", "--yes")
    until(lambda: len(project.objects()) == 2 and (project.cloud / "program").exists())
    os.kill(int((project.cloud / "program").read_text()), signal.SIGKILL)
    release.touch()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the program ended with code -9" in output
    assert "slow" in project.resources()  # its create was under way, and ended


def test_a_killed_replacement_goes_on(project: Project, until: Until) -> None:
    release = project.cloud.parent / "release"
    program = 'Thing("a", kind="Solo", name="a", force={}, **({{"hang": "{}"}} if {} == 2 else {{}}))'
    project.up(program.format(1, release, 1))
    project.program(program.format(2, release, 2))
    process = project.start("up", "--yes")
    until(lambda: project.names("create") == ["a", "a"])
    process.kill()
    process.wait()
    assert project.resources()["a"]["pendingReplacement"] is True
    release.touch()
    run = project.up()
    assert run.ok, run.text
    assert project.names("delete") == ["a"]
    assert project.objects()["a"]["force"] == 2
    assert project.up().changes == {"same": 2}


def test_a_killed_deletion_of_a_replaced_resource_goes_on(project: Project) -> None:
    program = 'Thing("a", force={}, undeletable={})'
    project.up(program.format(1, True))
    assert not project.up(program.format(2, False)).ok
    assert len(project.objects()) == 2
    [old] = [r for r in project.deployment()["resources"] if r.get("delete")]
    assert old["inputs"]["force"] == 1
    project.state_file.write_text(project.state_file.read_text().replace('"undeletable": true', '"undeletable": false'))
    assert project.up().ok
    assert len(project.objects()) == 1


def test_a_state_that_cannot_be_written_stops_the_run(project: Project) -> None:
    project.up('Thing("a")')
    folder = project.state_file.parent
    (folder / ".dev.json.new").mkdir()  # stands in the way, also of root
    run = project.up('Thing("a")\nb = Thing("b")\nThing("c", O(depends_on=[b]))')
    assert run.result.exit_code == 1
    assert "the state cannot be written" in run.text
    assert project.names("create") == ["a"]
