"""What programs do besides plain resources: unknowns, secrets, providers, functions, transforms, components, errors."""

from __future__ import annotations

import pytest

from localcloud.engine.errors import EngineError
from tests.engine.harness import Project

PASSWORD, OTHER = "correct-horse-battery", "correct-mule-battery"


def test_preview_knows_what_it_cannot_know(project: Project) -> None:
    run = project.preview("""
a = Thing("a", value="x")
b = Thing("b", value=a.url)
a.url.apply(lambda u: print("SEEN", u))
a.value.apply(lambda v: print("VALUE", v))
pulumi.export("url", a.url)
pulumi.export("value", a.value)
""")
    assert run.ok, run.text
    assert run.result.outputs["value"] == "x"
    assert "SEEN" not in run.text
    assert "VALUE x" in run.text
    assert 'url: "[unknown]"' in run.text
    checked = {e["name"]: e["news"] for e in project.calls("check")}
    assert checked["b"]["value"] == "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
    assert not project.state_file.exists()
    assert project.calls("create") == []


def test_preview_of_a_deployed_stack_knows_outputs(project: Project) -> None:
    project.up('a = Thing("a", value="x")\npulumi.export("url", a.url)')
    run = project.preview('a = Thing("a", value="y")\nThing("b", value=a.url)\npulumi.export("url", a.url)')
    assert run.result.outputs["url"].startswith("https://a-")


def test_checks_get_names_types_and_the_seed_of_the_wish(project: Project) -> None:
    project.up('Thing("a", value="x")')
    project.up('Thing("a", value="x")', parallel=3)
    project.destroy()
    project.up('Thing("a", value="x")')
    first, second, third = project.calls("check")
    assert (first["name"], first["type"]) == ("a", "test:index:Thing")
    assert first["seed"] == third["seed"] and len(first["seed"]) == 64
    assert second["olds"]["value"] == "x"


@pytest.mark.parametrize("accepts", ["", "1"])
def test_secrets_are_never_in_plain_text(project: Project, accepts: str) -> None:
    project.env["TEST_ACCEPT_SECRETS"] = accepts
    program = """
hidden = pulumi.Output.secret("PASSWORD")
a = Thing("a", O(additional_secret_outputs=["url"]), value=hidden, nested={"deep": [hidden, "public"]}, more=MORE)
b = Thing("b", value=a.value.apply(lambda v: v + "!"))
pulumi.export("hidden", hidden)
pulumi.export("nested", {"inside": b.value})
pulumi.export("url", a.url)
pulumi.log.info("public message")
"""
    first = program.replace("PASSWORD", PASSWORD).replace("MORE", "1")
    second = program.replace("PASSWORD", OTHER).replace("MORE", "2")
    preview, run = project.preview(first, diff=True), project.up(first, diff=True)
    changes, changed = project.preview(second, diff=True), project.up(second, diff=True)
    written = project.state_file.read_text()
    for done in (preview, run, changes, changed):
        assert done.ok, done.text
        assert "battery" not in done.text + str(done.result.document)
        assert "https://a-" not in done.text
    assert "battery" not in written
    assert "https://a-" not in written
    assert "[secret]" in changes.text
    assert "~ more: 1 => 2" in changes.text
    assert "public message" in run.text
    assert sorted(o["value"] for o in project.objects().values()) == [OTHER, OTHER + "!"]
    assert project.cli("stack", "output", "hidden") == (0, "[secret]\n")
    assert project.cli("stack", "output", "hidden", "--show-secrets") == (0, OTHER + "\n")
    assert project.up(second).changes == {"same": 3}


def test_wrong_or_missing_passphrase(project: Project) -> None:
    project.up('pulumi.export("s", pulumi.Output.secret("x"))')
    project.env["PULUMI_CONFIG_PASSPHRASE"] = "wrong"
    with pytest.raises(EngineError, match="incorrect passphrase"):
        project.up()
    del project.env["PULUMI_CONFIG_PASSPHRASE"]
    project.env["NO_PASSPHRASE"] = "1"
    with pytest.raises(EngineError, match="no passphrase is set"):
        project.up()


def test_default_provider_is_configured_by_the_stack(project: Project) -> None:
    project.config("config: {test:region: here, test:other: {a: 1}}\n")
    project.up('Thing("a")')
    assert project.calls("create")[0]["region"] == "here"
    [configured] = project.calls("configure")
    assert configured["variables"]["test:config:other"] == '{"a": 1}'
    provider = project.resources()["default"]
    assert provider["type"] == "pulumi:providers:test"
    assert project.resources()["a"]["provider"] == f"{provider['urn']}::{provider['id']}"
    project.config("config: {test:region: there}\n")
    assert project.up().steps() == {"a": "replace"}  # DiffConfig says that another region cannot manage it
    assert len(project.objects()) == 1


def test_explicit_provider(project: Project) -> None:
    program = """
p = Provider("p", region="{0}", extra={1})
g = Group("g", O(provider=p))
Thing("a", O(provider=p), name="a")
Thing("b", O(parent=g), name="b")
"""
    project.up(program.format("east", 1))
    assert [e["region"] for e in project.calls("create")] == ["east", "east"]
    assert project.up(program.format("east", 2)).steps() == {"p": "update"}
    run = project.up(program.format("west", 2).replace('name="a"', 'name="a2"').replace('name="b"', 'name="b2"'))
    assert run.steps() == {"p": "replace", "a": "replace", "b": "replace"}, run.text
    assert set(project.objects()) == {"a2", "b2"}
    assert project.destroy().ok
    assert project.objects() == {}


def test_provider_configured_by_a_resource_is_unknown_in_the_first_preview(project: Project) -> None:
    program = 'a = Thing("a")\np = Provider("p", region=a.url)\nThing("b", O(provider=p), value=a.url)'
    preview = project.preview(program)
    assert preview.ok, preview.text
    assert preview.changes == {"create": 4}
    assert project.up(program).ok
    assert project.calls("create")[1]["region"].startswith("https://a-")
    assert project.preview(program).changes == {"same": 4}


def test_wrong_provider_config_and_missing_provider(project: Project) -> None:
    run = project.preview('Provider("p", region="nowhere")')
    assert "region: no such region" in run.text
    run = project.preview('pulumi.CustomResource("other:index:T", "o", {})\nThing("a")')
    assert not run.ok
    assert "pulumi-resource-other is expected on PATH" in run.text
    assert run.steps()["a"] == "create"


def test_functions(project: Project) -> None:
    program = """
r = pulumi.runtime.invoke("test:index:echo", {"x": 1}).value
pulumi.export("echo", r["echo"]["x"])
"""
    assert project.preview(program).result.outputs == {"echo": 1}
    assert project.calls("invoke")[0]["preview"] is True
    assert project.up(program).result.outputs == {"echo": 1}
    broken = project.up('pulumi.runtime.invoke("test:index:broken", {})')
    assert not broken.ok
    assert "x: is broken" in broken.text


def test_transforms(project: Project) -> None:
    run = project.up("""
from pulumi import ResourceTransformResult as R
def tag(label):
    async def change(args):
        if args.type_ == "test:index:Thing":
            return R({**args.props, "tags": [*args.props.get("tags", []), label]}, args.opts)
    return change
def guard(args):
    return R(args.props, pulumi.ResourceOptions.merge(args.opts, O(protect=True, ignore_changes=["value"])))
pulumi.runtime.register_resource_transform(tag("stack"))
g = Group("g", O(transforms=[tag("parent")]))
Thing("a", O(parent=g, transforms=[tag("own")]), name="a")
Thing("b", O(transforms=[guard]), name="b")
""")
    assert run.ok, run.text
    assert project.objects()["a"]["tags"] == ["own", "parent", "stack"]
    assert project.objects()["b"]["tags"] == ["stack"]
    assert project.resources()["b"]["protect"] is True
    assert project.resources()["b"]["ignoreChanges"] == ["value"]


def test_invoke_transforms(project: Project) -> None:
    run = project.up("""
pulumi.runtime.register_invoke_transform(lambda args: pulumi.InvokeTransformResult({"x": 2}, args.opts))
pulumi.export("echo", pulumi.runtime.invoke("test:index:echo", {"x": 1}).value["echo"]["x"])
""")
    assert run.result.outputs == {"echo": 2}, run.text


def test_component_in_a_plugin(project: Project) -> None:
    program = """
class Remote(pulumi.ComponentResource):
    def __init__(self, name):
        super().__init__("test:index:Remote", name, {"childUrl": None, "value": "x"}, remote=True)
r = Remote("r")
pulumi.export("url", r.childUrl)
"""
    assert project.preview(program).steps() == {"shop-dev": "create", "r": "create", "r-child": "create"}
    run = project.up(program)
    assert run.ok, run.text
    assert run.result.outputs["url"].startswith("https://r-child-")
    assert project.resources()["r-child"]["parent"] == project.resources()["r"]["urn"]
    assert project.up().changes == {"same": 3}
    assert project.destroy().ok


def test_components_keep_their_outputs(project: Project) -> None:
    project.up('g = Group("g")\na = Thing("a", O(parent=g))\ng.register_outputs({"url": a.url})')
    assert project.resources()["g"]["outputs"]["url"].startswith("https://a-")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ('pulumi.StackReference("organization/other/dev")', "stack references"),
        ('pulumi.ResourceHook("h", lambda a: None)\nThing("a", O(hooks=pulumi.ResourceHookBinding('
         'before_create=[lambda a: None])))', "hooks need the pulumi CLI"),
        ('Thing("a", value=pulumi.FileArchive("."))', "archives"),
    ],
)  # fmt: skip
def test_what_needs_the_cli_says_so(project: Project, program: str, message: str) -> None:
    run = project.preview(program)
    assert not run.ok
    assert message in run.text


def test_assets_are_compared_by_content(project: Project) -> None:
    (project.directory / "file").write_text("one")
    program = 'Thing("a", O(ignore_changes=[]), value=pulumi.FileAsset("file"))'
    assert project.up(program).ok
    assert project.up(program).changes == {"same": 2}
    (project.directory / "file").write_text("two")
    assert project.preview(program).steps() == {"a": "update"}


def test_errors_of_the_program_are_short(project: Project) -> None:
    (project.directory / "lib.py").write_text("def f():\n    raise KeyError('nope')\n")
    run = project.up('Thing("a")\nimport lib\nlib.f()')
    assert run.result.exit_code == 1
    assert "the program failed: KeyError: 'nope'" in run.text
    assert "__main__.py:6 in <module>: lib.f()" in run.text
    assert "lib.py:2 in f" in run.text
    assert "Traceback" not in run.text
    assert "runpy" not in run.text
    assert "a" in project.resources()  # what was registered before was made, and is recorded


def test_errors_for_users_are_only_their_text(project: Project) -> None:
    for program in (
        "class SettingsError(Exception):\n    user_error = True\nraise SettingsError('partitions[1]: no')",
        "raise pulumi.RunError('partitions[1]: no')",
    ):
        run = project.preview(program)
        assert run.result.exit_code == 1
        assert "error: partitions[1]: no" in run.lines
        assert "line" not in run.text.replace("inline", "")
    run = project.preview("import sys\nsys.exit(3)")
    assert "the program ended with code 3" in run.text


def test_errors_in_apply_and_logged_errors_fail_the_run(project: Project) -> None:
    run = project.up('a = Thing("a")\na.name.apply(lambda n: 1 / 0)')
    assert run.result.exit_code == 1
    assert "ZeroDivisionError" in run.text
    run = project.up('Thing("a")\npulumi.log.error("this is bad")')
    assert run.result.exit_code == 1
    assert "this is bad" in run.text


def test_the_program_gets_its_config_and_surroundings(project: Project) -> None:
    project.config(
        'config: {shop:size: 3, shop:list: [{a: 1}], shop:on: true, shop:time: 1:00:00, "shop:config:old": o}\n',
        "config: {size: {type: integer}, extra: {type: string, default: dflt}, test:region: {value: here}}\n",
    )
    run = project.preview("""
import os, sys
c = pulumi.Config()
pulumi.export("all", [c.require_int("size"), c.require_object("list"), c.require_bool("on"), c.require("time"),
  c.require("old"), c.require("extra"), pulumi.Config("test").require("region")])
pulumi.export("where", [pulumi.get_stack(), pulumi.get_project(), pulumi.get_organization(), os.getcwd(),
  pulumi.runtime.is_dry_run()])
""")
    assert run.ok, run.text
    assert run.result.outputs["all"] == [3, [{"a": 1}], True, "1:00:00", "o", "dflt", "here"]
    assert run.result.outputs["where"] == ["dev", "shop", "organization", str(project.directory), True]
