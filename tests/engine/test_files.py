"""Files and the command line: config, the checkpoint's format, secrets at rest, stacks, and what the user is told."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from localcloud.engine import api, cli, crypto, paths, state, urns, values
from localcloud.engine.errors import EngineError, StepError
from localcloud.engine.goals import seconds
from localcloud.engine.operations import Order
from tests.engine.harness import Project

# The CLI's own example of its format: the passphrase is "password".
SALT = "v1:fozI5u6B030=:v1:F+6ZduKKd8G0/V7L:PGMFeIzwobWRKmEAzUdaQHqC5mMRIQ=="

# Keys of a resource in apitype.ResourceV3, and those of them that are always there.
RESOURCE_KEYS = {
    "urn", "custom", "delete", "id", "type", "inputs", "outputs", "parent", "protect", "taint", "external",
    "dependencies", "initErrors", "provider", "propertyDependencies", "pendingReplacement", "additionalSecretOutputs",
    "aliases", "customTimeouts", "importID", "retainOnDelete", "deletedWith", "replaceWith", "created", "modified",
    "sourcePosition", "stackTrace", "ignoreChanges", "hideDiff", "replaceOnChanges", "replacementTrigger",
    "refreshBeforeUpdate", "viewOf", "resourceHooks", "extensionRef", "snippetID",
}  # fmt: skip


def check_deployment(deployment: dict[str, Any]) -> None:
    """What the CLI asks of a deployment, version 3, when it loads one."""
    assert set(deployment) <= {"manifest", "secrets_providers", "resources", "pending_operations", "metadata"}
    manifest = deployment["manifest"]
    assert manifest["magic"] == hashlib.sha256(manifest["version"].encode()).hexdigest()
    assert datetime.fromisoformat(manifest["time"])
    for plugin in manifest.get("plugins", []):
        assert set(plugin) == {"name", "path", "type", "version"}
    seen: dict[str, dict[str, Any]] = {}
    for resource in deployment["resources"]:
        assert {"urn", "custom", "type"} <= set(resource) <= RESOURCE_KEYS
        name = urns.parse(resource["urn"])
        assert name.type == resource["type"]
        assert resource["custom"] == bool(resource.get("id"))
        if resource["custom"] and not urns.is_provider(resource["type"]):
            urn, id_ = urns.split_reference(resource["provider"])
            assert seen[urn]["id"] == id_
        references = [*resource.get("dependencies", []), resource.get("parent"), resource.get("deletedWith")]
        references += [u for names in resource.get("propertyDependencies", {}).values() for u in names]
        assert {r for r in references if r} <= set(seen)  # everything comes after what it refers to
        if not resource.get("delete"):
            assert resource["urn"] not in seen
            seen[resource["urn"]] = resource
        for key in ("created", "modified"):
            assert datetime.fromisoformat(resource[key])


def test_checkpoint_is_a_deployment_of_version_3(project: Project) -> None:
    project.up("""
z = Thing("z", value=pulumi.Output.secret("hidden"), n=1, f=1.5, on=True, nothing=None, list=[1, {"a": 2}])
g = Group("g", O(depends_on=[z]))
p = Provider("p", region=z.url)
Thing("a", O(parent=g, provider=p, deleted_with=z, protect=False, custom_timeouts=pulumi.CustomTimeouts(delete="1m")),
    ref=z.name, other=z.url)
""")
    content = json.loads(project.state_file.read_text())
    assert set(content) == {"version", "checkpoint"}
    assert content["version"] == 3
    assert content["checkpoint"]["stack"] == "organization/shop/dev"
    deployment = content["checkpoint"]["latest"]
    check_deployment(deployment)
    assert deployment["secrets_providers"]["type"] == "passphrase"
    assert (project.backend / ".pulumi/meta.yaml").read_text() == "version: 1\n"
    resources = project.resources()
    assert resources["z"]["inputs"]["n"] == 1
    assert resources["z"]["inputs"]["f"] == 1.5
    assert resources["z"]["inputs"]["list"] == [1, {"a": 2}]
    hidden = resources["z"]["inputs"]["value"]
    assert hidden[values.SIGNATURE] == values.SECRET
    crypter = crypto.Crypter("open sesame", deployment["secrets_providers"]["state"]["salt"])
    assert json.loads(crypter.decrypt(hidden["ciphertext"])) == "hidden"
    assert resources["a"]["propertyDependencies"] == {"ref": [resources["z"]["urn"]], "other": [resources["z"]["urn"]]}


def test_export_and_import(project: Project) -> None:
    project.up('a = Thing("a", value=pulumi.Output.secret("hidden"))\npulumi.export("v", a.value)')
    code, exported = project.cli("stack", "export")
    assert code == 0
    content = json.loads(exported)
    assert content["version"] == 3
    check_deployment(content["deployment"])
    assert "hidden" not in exported
    _, shown = project.cli("stack", "export", "--show-secrets")
    assert '\\"hidden\\"' in shown
    project.state_file.unlink()
    code, output = project.cli("stack", "import", input=shown)  # plain secrets are encrypted on the way in
    assert (code, output) == (0, "imported into dev\n")
    assert "hidden" not in project.state_file.read_text()
    assert project.up().changes == {"same": 2}
    for wrong, message in (
        ("{", "is no JSON"),
        ("{}", "is no exported state"),
        (exported.replace("urn:pulumi:dev", "urn:pulumi:prod"), "of another stack"),
    ):
        code, output = project.cli("stack", "import", input=wrong)
        assert code == 1
        assert message in output


def test_secrets_are_exchangeable_with_the_cli() -> None:
    crypter = crypto.Crypter("password", SALT)
    assert crypter.salt == SALT
    sealed = crypter.encrypt("grün")
    assert sealed.startswith("v1:") and sealed.count(":") == 2
    assert crypto.Crypter("password", SALT).decrypt(sealed) == "grün"
    with pytest.raises(EngineError, match="incorrect passphrase"):
        crypto.Crypter("password1", SALT).encrypt("x")
    with pytest.raises(EngineError, match="is not of the form"):
        crypto.Crypter("password", "v1:oops")
    with pytest.raises(EngineError, match="cannot be decrypted"):
        crypter.decrypt(sealed[:-8] + "AAAAAAA=")


def test_secret_config(project: Project) -> None:
    sealed = crypto.Crypter("password", SALT).encrypt("hunter2")
    project.env["PULUMI_CONFIG_PASSPHRASE"] = "password"
    project.config(
        f"encryptionsalt: {SALT}\nconfig:\n  shop:token: {{secure: {sealed}}}\n"
        f"  shop:deep: {{list: [{{secure: {sealed}}}]}}\n  test:region: {{secure: {sealed}}}\n"
    )
    run = project.up("""
c = pulumi.Config()
pulumi.export("token", c.require_secret("token"))
pulumi.export("deep", c.require_secret_object("deep"))
Thing("a")
""")
    assert run.ok, run.text
    assert "hunter2" not in run.text + project.state_file.read_text()
    assert project.deployment()["secrets_providers"]["state"]["salt"] == SALT
    environment = {**project.environment, "SLIPWAY_ENGINE": "embedded"}
    shown = api.outputs("dev", environment, show_secrets=True, cwd=project.directory)
    assert shown == {"token": "hunter2", "deep": {"list": ["hunter2"]}}
    assert api.outputs("dev", environment, cwd=project.directory) == {"token": "[secret]", "deep": "[secret]"}
    assert project.calls("configure")[0]["config"]["region"] == "hunter2"
    code, output = project.cli("config")
    assert code == 0
    assert "shop:token: [secret]" in output
    project.env["PULUMI_CONFIG_PASSPHRASE"] = "other"
    with pytest.raises(EngineError, match="incorrect passphrase"):
        project.preview()


@pytest.mark.parametrize(
    ("stack", "schema", "message"),
    [
        ("config: {shop:size: big}", "config: {size: {type: integer}}", 'shop:size: "big" is no integer'),
        ("config: {shop:size: [1]}", "config: {size: {type: object}}", "shop:size: [1] is no object"),
        ("config: {}", "config: {size: {type: integer}, b: {type: string}}", "required and missing: shop:size, shop:b"),
        ("config: {shop:t: x}", "config: {t: {type: string, secret: true}}", "shop:t: must be a secret"),
        ("confg: {}", "", "Pulumi.dev.yaml: confg: no such key; allowed are config, encryptedkey"),
        ("config:\n  shop:a: [}", "", "Pulumi.dev.yaml:2: not valid YAML: did not find expected node content"),
        ("secretsprovider: awskms://x\nconfig: {shop:t: {secure: v1:a:b}}", "", "shop:t: "),
        ("environment: [dev]", "", "Pulumi ESC needs"),
    ],
)
def test_wrong_config_names_file_and_key(project: Project, stack: str, schema: str, message: str) -> None:
    project.config(stack + "\n", schema + "\n")
    with pytest.raises(EngineError) as caught:
        project.preview()
    assert message in str(caught.value)
    assert "Pulumi.dev.yaml" in str(caught.value)


def test_unknown_stack_names_those_that_exist(project: Project) -> None:
    (project.directory / "stacks/Pulumi.prod.yaml").write_text("")
    code, output = project.cli("preview", "--stack", "dve")
    assert code == 1
    assert "no stack 'dve': there are dev, prod" in output
    assert "Traceback" not in output
    code, output = project.cli("up", "--yes")
    assert "Pass --stack with one of: dev, prod" in output
    project.up()
    assert project.cli("stack", "ls") == (0, "dev\nprod  (not deployed)\n")


def test_on_a_terminal_it_shows_what_is_under_way(project: Project) -> None:
    release = project.cloud.parent / "release"
    project.program(f'a = Thing("slow", hang="{release}")')
    ours, theirs = pty.openpty()
    process = project.start("up", "--yes", stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while part := os.read(ours, 4096):
            seen += part
            if re.search(rb"creating \(\d", seen):
                release.touch()
    os.close(ours)
    assert process.wait(30) == 0
    text = seen.decode()
    assert re.search(r"slow +created", text)
    assert "+  2 created" in text


def test_list_of_resources(project: Project) -> None:
    project.up('g = Group("g")\nThing("a", O(parent=g), name="a")')
    code, output = project.cli("stack", "resources")
    assert code == 0
    lines = [line.split() for line in output.splitlines()]
    assert ["pulumi:pulumi:Stack", "shop-dev"] in lines
    assert ["test:index:Thing", "a", "a"] in lines
    assert "    test:index:Thing" in output  # below its group
    code, output = project.cli("stack", "resources", "--json")
    assert {r["name"] for r in json.loads(output)} == {"shop-dev", "g", "a", "default"}


def test_an_empty_stack_says_that_it_is_empty(project: Project) -> None:
    code, output = project.cli("stack", "resources")
    assert code == 0 and output == "stack dev has no resources\n"


def test_a_reader_that_goes_away_is_no_error(project: Project) -> None:
    project.up('Thing("a", name="a")')
    reading, writing = os.pipe()
    os.close(reading)
    process = project.start("stack", "resources", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 1


def test_usage_names_the_command_that_was_typed(project: Project) -> None:
    assert "usage: ./slipway engine stack" in project.cli("stack")[1]


def test_changes_need_a_yes(project: Project) -> None:
    for command in ("up", "destroy", "refresh"):
        code, output = project.cli(command)
        assert code == 1
        assert "pass --yes" in output
    assert not project.state_file.exists()


def test_json_output(project: Project) -> None:
    project.program(
        'Thing("a", value=1)\nThing("b", fail="no")\npulumi.export("x", pulumi.Output.secret(1))\nprint("hi")'
    )
    code, output = project.cli("up", "--yes", "--json")
    document = json.loads(output)
    assert code == 1
    assert document["result"] == "failed"
    assert document["changes"]["create"] == 2
    assert [s["name"] for s in document["steps"]] == ["shop-dev", "a"]
    assert document["failures"][0]["message"] == "no"
    assert document["outputs"] == {"x": "[secret]"}
    assert {"severity": "info", "message": "hi", "urn": ""} in document["diagnostics"]


def test_not_a_project(tmp_path: Any) -> None:
    with pytest.raises(EngineError, match=r"no Pulumi.yaml in"):
        api.run("preview", "dev", {"SLIPWAY_ENGINE": "embedded"}, cwd=tmp_path)


def test_api_runs_the_cli_where_it_is_on_path(project: Project, tmp_path: Any) -> None:
    """A stand-in for the pulumi executable notes how it is called and answers as the CLI does."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "pulumi"
    summary = "Resources:\\n    + 12 created\\n    +-1 replaced\\n    3 unchanged\\n\\nDuration: 8s\\n"
    fake.write_text(f"""#!/bin/sh
echo "$@ $PULUMI_BACKEND_URL $PULUMI_CONFIG_PASSPHRASE" >> {tmp_path}/calls
case "$1 $2" in
  "stack ls") echo '[{{"name": "organization/shop/other"}}]' ;;
  "stack init") ;;
  "stack output") echo '{{"url": "x"}}' ;;
  *) command -v pulumi-resource-test > {tmp_path}/plugin; printf '{summary}'; exit 3 ;;
esac
""")
    fake.chmod(0o755)
    env = project.environment
    env = {k: env[k] for k in ("TEST_CLOUD", "PYTHONPATH", "PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE")}
    env["PATH"] = f"{folder}:{project.environment['PATH']}"
    lines: list[str] = []
    result = api.run("up", "dev", env, [tmp_path / "pack"], lines.append, cwd=project.directory)
    assert result.exit_code == 3
    assert result.changes == {"create": 12, "replace": 1, "same": 3}
    assert result.outputs == {"url": "x"}
    assert "    + 12 created" in lines
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [c.split()[:2] for c in calls] == [
        ["stack", "ls"],
        ["stack", "init"],
        ["up", "--stack"],
        ["stack", "output"],
    ]
    assert f"--policy-pack {tmp_path}/pack" in calls[2]
    assert "--non-interactive" in calls[2] and "--yes" in calls[2]
    assert calls[2].endswith(f"{project.backend.as_uri()} open sesame")
    assert (tmp_path / "plugin").read_text().strip().endswith("pulumi-resource-test")
    assert (
        api.run("preview", "dev", {**env, "SLIPWAY_ENGINE": "embedded"}, cwd=project.directory, quiet=True).exit_code
        == 0
    )


def test_cli_summary_of_a_preview() -> None:
    lines = ["Resources:", "    + 2 to create", "    ~ 1 to update", "    +-1 to replace", "    5 unchanged", ""]
    assert cli.counts(lines) == {"create": 2, "update": 1, "replace": 1, "same": 5}
    order = Order("preview", "dev", Path(), {}, diff=True)
    assert "--yes" not in cli.command(order, "pulumi")


def test_property_paths() -> None:
    assert paths.parse('a.b[0]["x.y"][*].c') == ("a", "b", 0, "x.y", "*", "c")
    with pytest.raises(StepError, match="is no property path"):
        paths.parse("a[")
    old: dict[str, Any] = {"a": {"b": 1, "c": 2}, "l": [{"p": 1}, {"p": 2}], "gone": 1}
    new: dict[str, Any] = {"a": {"b": 9, "c": 9}, "l": [{"p": 9, "q": 9}, {"p": 9}], "fresh": 9}
    assert paths.reset(new, old, ["a.b"])["a"] == {"b": 1, "c": 9}
    assert paths.reset(new, old, ["l[*].p"])["l"] == [{"p": 1, "q": 9}, {"p": 2}]
    assert paths.reset(new, old, ["fresh", "gone"]) == {"a": new["a"], "l": new["l"], "gone": 1}
    assert paths.reset(new, old, ["*"]) == old
    assert new["a"]["b"] == 9
    hidden = values.secret({"b": 9})
    assert paths.reset({"a": hidden}, {"a": values.secret({"b": 1})}, ["a.b"])["a"]["value"] == {"b": 1}
    assert paths.covers(["a"], "a.b") and paths.covers(["a.b"], "a") and paths.covers(["*"], "z")
    assert not paths.covers(["a.c"], "a.b")


def test_durations() -> None:
    assert [seconds(text) for text in ("90s", "1h30m", "1.5m", "250ms")] == [90, 5400, 90, 0.25]
    with pytest.raises(StepError, match="'soon' is no duration"):
        seconds("soon")


def test_urns() -> None:
    stack = urns.make("dev", "shop", "", urns.STACK_TYPE, "shop-dev")
    group = urns.make("dev", "shop", stack, "a:b:Group", "g")
    assert urns.make("dev", "shop", group, "a:b:T", "n::x") == "urn:pulumi:dev::shop::a:b:Group$a:b:T::n::x"
    assert urns.parse("urn:pulumi:dev::shop::a:b:Group$a:b:T::n::x").name == "n::x"
    assert urns.short_type("aws:ec2/vpc:Vpc") == "aws:ec2:Vpc"
    assert urns.short_type("kubernetes:core/v1:Pod") == "kubernetes:core/v1:Pod"
    assert urns.short_type("a:b") == "a:b"
    with pytest.raises(ValueError, match="is no URN"):
        urns.parse("arn:aws")


def test_state_is_ordered_by_dependency_however_long_the_chain() -> None:
    count = 5000
    names = [f"urn:pulumi:dev::shop::a:b:T::t{i}" for i in range(count)]
    snapshot = state.Snapshot()
    for i in reversed(range(count)):
        before = [names[i - 1]] if i else []
        snapshot.live[names[i]] = state.Resource(
            names[i], "a:b:T", True, dependencies=[*before, names[i // 2]] if i else []
        )
    assert [r.urn for r in snapshot.ordered()] == names


def test_values_keep_their_secrets() -> None:
    hidden = values.secret("s")
    assert values.keep_secrets({"a": "s", "b": {"c": 1, "d": 2}}, {"a": hidden, "b": {"c": hidden}}) == {
        "a": hidden,
        "b": {"c": values.secret(1), "d": 2},
    }
    assert values.keep_secrets({"l": [1, 2]}, {"l": [1, hidden]}) == {"l": values.secret([1, 2])}
    assert values.masked({"a": hidden, "b": [values.UNKNOWN]}) == {"a": "[secret]", "b": ["[unknown]"]}
    message = values.to_struct({"a": hidden, "n": None, "t": True, "i": 3, "f": 0.5, "l": [], "o": {}})
    assert values.from_struct(message) == {"a": hidden, "n": None, "t": True, "i": 3, "f": 0.5, "l": [], "o": {}}
    output = {values.SIGNATURE: values.OUTPUT, "secret": True}
    assert values.from_struct(values.to_struct({"o": output})) == {"o": values.secret(values.UNKNOWN)}
