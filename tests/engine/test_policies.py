"""Policy packs: real packs in their own processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcloud.engine.errors import EngineError
from tests.engine.harness import Project

PACK = """
from pulumi_policy import (EnforcementLevel, PolicyConfigSchema, PolicyPack, ResourceValidationPolicy,
    StackValidationPolicy)

def short(args, report):
    limit = args.get_config().get("limit", 5)
    if args.resource_type == "test:index:Thing" and len(args.props.get("value") or "") > limit:
        report(f"value is longer than {limit}")

def no_evil(args, report):
    if args.props.get("value") == "evil":
        report("evil is not allowed")

def tags(args):
    if args.resource_type == "test:index:Thing" and "tag" not in args.props:
        return {**args.props, "tag": "added"}

def region(args, report):
    if args.provider and args.provider.props.get("region") == "forbidden":
        report("region is forbidden")

def few(args, report):
    things = [r for r in args.resources if r.resource_type == "test:index:Thing"]
    if len(things) > 2:
        report(f"{len(things)} things, parents {sorted({r.parent.name for r in things})}, lengths "
               f"{sorted(int(r.props.get('length', 0)) for r in things)}")

PolicyPack("rules", enforcement_level=EnforcementLevel.MANDATORY, policies=[
    ResourceValidationPolicy("short", "values are short", validate=short, enforcement_level=EnforcementLevel.ADVISORY,
        config_schema=PolicyConfigSchema({"limit": {"type": "integer"}})),
    ResourceValidationPolicy("no-evil", "nothing evil", validate=no_evil),
    ResourceValidationPolicy("region", "regions", validate=region),
    ResourceValidationPolicy("tags", "things have tags", remediate=tags, enforcement_level=EnforcementLevel.REMEDIATE),
    StackValidationPolicy("few", "few things", validate=few),
])
"""


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "PulumiPolicy.yaml").write_text("runtime: python\n")
    (folder / "__main__.py").write_text(PACK)
    return folder


def test_a_program_that_fails_is_not_said_to_keep_the_rules(project: Project, pack: Path) -> None:
    assert "✓ rules" in project.preview('Thing("a", value="fine")', packs=[pack]).text
    assert "rules" not in project.preview('raise RuntimeError("no")', packs=[pack]).text


def test_levels_remediation_and_stack_rules(project: Project, pack: Path) -> None:
    # One project through all of it: a pack takes a second to start.
    run = project.up(
        'Thing("good", value="ok", name="good")\nThing("long", value="too long", name="long")', packs=[pack]
    )
    assert run.ok, run.text
    assert "[advisory]  short  (long)" in run.text
    assert "value is longer than 5" in run.text
    assert project.objects()["good"]["tag"] == "added"
    assert "policy tags corrected good" in run.text
    assert project.up(packs=[pack]).changes == {"same": 3}

    evil = 'Thing("bad", value="evil", name="bad")\nThing("good", value="ok", name="good")'
    preview = project.preview(evil, packs=[pack])
    assert preview.result.exit_code == 1
    assert "[mandatory]  no-evil  (bad)" in preview.text
    assert preview.steps() == {"bad": "create", "long": "delete"}  # all of it is shown
    update = project.up(evil, packs=[pack])
    assert update.result.exit_code == 1
    assert "stopped by policy no-evil" in update.text
    assert set(project.objects()) == {"good", "long"}  # stopped before it was touched

    many = "for i in range(3): Thing(f't{i}', value='x', name=f't{i}')\nThing('good', value='ok', name='good')"
    preview = project.preview(many, packs=[pack])
    assert preview.result.exit_code == 1
    assert "[mandatory]  few" in preview.text
    assert "4 things, parents ['shop-dev'], lengths [1, 1, 1, 2]" in preview.text
    update = project.up(many, packs=[pack])
    assert update.result.exit_code == 1
    assert "long" in project.objects()  # nothing is deleted by a run that broke a rule


def test_pack_config(project: Project, pack: Path, tmp_path: Path) -> None:
    program = 'Thing("a", value="evil", name="a")'
    config = tmp_path / "config.json"
    config.write_text('{"short": {"enforcementLevel": "mandatory", "limit": 3}, "no-evil": "disabled"}')
    run = project.preview(program, packs=[pack], pack_configs=[config])
    assert run.result.exit_code == 1
    assert "[mandatory]  short" in run.text
    assert "value is longer than 3" in run.text
    assert "no-evil" not in run.text
    config.write_text('{"shrt": "advisory"}')
    with pytest.raises(EngineError, match="'shrt', which is none of its policies: short, no-evil"):
        project.preview(program, packs=[pack], pack_configs=[config])


def test_packs_see_the_provider(project: Project, pack: Path) -> None:
    project.config("config: {test:region: forbidden}\n")
    run = project.preview('Thing("a", name="a")', packs=[pack])
    assert "region is forbidden" in run.text


def test_broken_packs_are_told(project: Project, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"is no policy pack: it has no PulumiPolicy.yaml"):
        project.preview(packs=[tmp_path])
    (tmp_path / "PulumiPolicy.yaml").write_text("runtime: python\n")
    (tmp_path / "__main__.py").write_text("raise SystemExit('cannot import the rules')")
    with pytest.raises(EngineError, match="cannot import the rules"):
        project.preview(packs=[tmp_path])
