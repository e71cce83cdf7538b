"""What the engine does with resources: order, parallelism, updates, replacements, deletions and the options."""

from __future__ import annotations

import asyncio

import pytest

from localcloud.engine import display
from localcloud.engine.state import Resource
from tests.engine.harness import Project


def test_second_up_changes_nothing(project: Project) -> None:
    first = project.up('a = Thing("a", value="x")\nThing("b", ref=a.name)\npulumi.export("url", a.url)')
    assert first.ok
    assert first.changes == {"create": 3}
    assert first.result.outputs == {"url": project.objects()[project.resources()["a"]["id"]] and
                                    f"https://{project.resources()['a']['id']}.example"}  # fmt: skip
    before = project.state_file.read_bytes()
    project.forget_calls()
    second = project.up()
    assert second.changes == {"same": 3}
    assert "no changes" in second.text
    assert project.calls("create", "update", "delete") == []
    assert project.state_file.read_bytes() == before


def test_creates_in_dependency_order_and_destroys_in_reverse(project: Project) -> None:
    project.up("""
a = Thing("a")
b = Thing("b", ref=a.name)
c = Thing("c", O(depends_on=[b]))
d = Thing("d", ref=b.name)
""")
    created = project.names("create")
    assert created.index("a") < created.index("b") < min(created.index("c"), created.index("d"))
    run = project.destroy()
    assert run.ok, run.text
    deleted = project.names("delete")
    assert deleted[-2:] == ["b", "a"]
    assert sorted(deleted[:2]) == ["c", "d"]
    assert project.objects() == {}
    assert project.resources() == {}


def test_independent_resources_are_created_at_the_same_time(project: Project) -> None:
    run = project.up("for i in range(6): Thing(f't{i}', meet=6)")  # each waits until all six are there
    assert run.ok, run.text


def test_parallel_limits_how_many(project: Project) -> None:
    project.up("for i in range(4): Thing(f't{i}')", parallel=1)
    kinds = [(e["call"], e["urn"]) for e in project.calls("create", "created")]
    assert [k for k, _ in kinds] == ["create", "created"] * 4
    assert all(kinds[i][1] == kinds[i + 1][1] for i in range(0, 8, 2))


def test_update_in_place(project: Project) -> None:
    project.up('Thing("a", value="one")')
    preview = project.preview('Thing("a", value="two")', diff=True)
    assert preview.changes == {"same": 1, "update": 1}
    assert "[diff: ~value]" in preview.text
    assert '~ value: "one" => "two"' in preview.text
    run = project.up()
    assert run.changes == {"same": 1, "update": 1}
    assert "updated" in run.text
    [call] = project.calls("update")
    assert call["olds"]["length"] == 3  # outputs of before
    assert call["old_inputs"]["value"] == "one"
    assert [o["value"] for o in project.objects().values()] == ["two"]
    assert project.resources()["a"]["outputs"]["value"] == "two"


def test_replacement_creates_first_and_deletes_last(project: Project) -> None:
    program = 'a = Thing("a", force={})\nThing("b", ref=a.name)'
    project.up(program.format(1))
    old = project.resources()["a"]["id"]
    project.forget_calls()
    preview = project.preview(program.format(2))
    assert preview.steps() == {"a": "replace", "b": "update"}
    assert "+-" in preview.text
    run = project.up()
    assert run.ok, run.text
    assert run.changes == {"same": 1, "replace": 1, "update": 1}
    steps = [(e["call"], e["urn"].rpartition("::")[2]) for e in project.calls("create", "update", "delete")]
    assert steps == [("create", "a"), ("update", "b"), ("delete", "a")]
    new = project.resources()["a"]["id"]
    assert new != old
    assert set(project.objects()) == {new, project.resources()["b"]["id"]}
    assert not [r for r in project.deployment()["resources"] if r.get("delete")]


def test_delete_before_replace_takes_those_with_it_that_must_be_replaced_too(project: Project) -> None:
    program = """
a = Thing("a", kind="Solo", name="a", force={})
only = Thing("only", O(depends_on=[a]), value="x")
b = Thing("b", force=a.url, name="b", kind="Solo")
c = Thing("c", kind="Solo", force=b.url, name="c")
"""
    project.up(program.format(1))
    project.forget_calls()
    assert project.preview(program.format(2)).steps() == {"a": "replace", "b": "replace", "c": "replace"}
    run = project.up()
    assert run.ok, run.text
    steps = [(e["call"], e["urn"].rpartition("::")[2]) for e in project.calls("create", "update", "delete")]
    assert steps == [(do, name) for do, names in (("delete", "cba"), ("create", "abc")) for name in names]
    assert "deleted original" in run.text
    assert not any("pendingReplacement" in r for r in project.resources().values())


def test_option_delete_before_replace(project: Project) -> None:
    program = 'Thing("a", O(delete_before_replace=True), name="fixed", force={})'
    project.up(program.format(1))
    project.forget_calls()
    assert project.up(program.format(2)).ok
    assert [e["call"] for e in project.calls("create", "delete")] == ["delete", "create"]


def test_replace_on_changes_and_replacement_trigger(project: Project) -> None:
    program = 'Thing("a", O(replace_on_changes=["value"], replacement_trigger={}), value={})'
    project.up(program.format(1, 1))
    first = project.resources()["a"]["id"]
    assert project.up(program.format(1, 2)).changes == {"same": 1, "replace": 1}
    second = project.resources()["a"]["id"]
    assert project.up(program.format(2, 2)).changes == {"same": 1, "replace": 1}
    assert len({first, second, project.resources()["a"]["id"]}) == 3
    assert len(project.objects()) == 1


def test_replace_with_and_deleted_with_follow_a_replacement(project: Project) -> None:
    program = """
a = Thing("a", force={})
Thing("b", O(replace_with=[a]))
Thing("c", O(deleted_with=a))
Thing("d", O(depends_on=[a]))
"""
    project.up(program.format(1))
    assert project.preview(program.format(2)).steps() == {"a": "replace", "b": "replace", "c": "replace"}
    assert project.up().changes == {"same": 2, "replace": 3}


def test_deleted_with_is_not_deleted_by_itself(project: Project) -> None:
    project.up('a = Thing("a")\nb = Thing("b", O(deleted_with=a))\nThing("c", O(depends_on=[b]))')
    run = project.destroy()
    assert run.ok, run.text
    assert project.names("delete") == ["c", "a"]
    assert run.changes == {"delete": 4}
    assert project.resources() == {}


def test_deleted_with_stays_when_its_host_cannot_be_deleted(project: Project) -> None:
    project.up('a = Thing("a", undeletable=True)\nThing("b", O(deleted_with=a))')
    run = project.destroy()
    assert not run.ok
    assert {"a", "b"} <= set(project.resources())


def test_retain_on_delete(project: Project) -> None:
    project.up('Thing("a", O(retain_on_delete=True))')
    assert "no longer managed" in project.up("").text
    assert project.names("delete") == []
    assert len(project.objects()) == 1
    assert "a" not in project.resources()


def test_protect(project: Project) -> None:
    program = 'Thing("a", O(protect={}), force={})'
    project.up(program.format(True, 1))
    for run in (project.preview(""), project.up(""), project.destroy()):
        assert not run.ok
        assert "protected" in run.text
    replaced = project.up(program.format(True, 2))
    assert not replaced.ok
    assert "protected" in replaced.text
    assert len(project.objects()) == 1
    assert project.up(program.format(False, 1)).ok
    assert project.up("").ok
    assert project.objects() == {}


def test_protect_is_inherited_from_the_parent(project: Project) -> None:
    project.up('g = Group("g", O(protect=True))\nThing("a", O(parent=g))')
    assert project.resources()["a"]["protect"] is True


def test_ignore_changes(project: Project) -> None:
    program = 'Thing("a", O(ignore_changes=["value", "deep.list[1]"]), value={0}, deep={{"list": [{0}, {0}], "k": 1}})'
    project.up(program.format(1))
    run = project.up(program.format(2))
    assert run.changes == {"same": 1, "update": 1}
    [state] = project.objects().values()
    assert state["value"] == 1
    assert state["deep"] == {"list": [2, 1], "k": 1}
    assert project.up(program.format(2).replace("value=2", "value=3")).changes == {"same": 2}


@pytest.mark.parametrize(
    "after",
    [
        'Thing("new", O(aliases=[pulumi.Alias(name="old")]), value="x")',
        'Thing("new", O(aliases=["urn:pulumi:dev::shop::test:index:Thing::old"]), value="x")',
        'Thing("old", O(parent=Group("g"), aliases=[pulumi.Alias(parent=pulumi.ROOT_STACK_RESOURCE)]), value="x")',
        'Thing("old", O(aliases=[pulumi.Alias(type_="test:index:Thing")]), kind="Other", value="x")',
    ],
)
def test_aliases(project: Project, after: str) -> None:
    project.up('Thing("old", value="x", name="n")')
    project.forget_calls()
    run = project.up(after.replace("value=", 'name="n", value='))
    assert run.ok, run.text
    assert project.calls("create", "delete") == []
    assert list(project.objects()) == ["n"]
    assert len([r for r in project.resources().values() if r["custom"] and r["type"].startswith("test:")]) == 1
    assert project.up().changes.keys() == {"same"}


def test_children_inherit_the_alias_of_their_parent(project: Project) -> None:
    program = """
g = Group("{0}", O(aliases={1}){2})
inner = Group("{0}-inner", O(parent=g), type_="test:index:Inner")
a = Thing("{0}-inner-a", O(parent=inner), name="a")
Thing("b", O(parent=a), name="b", ref=a.name)
"""
    project.up(program.format("one", [], ""))
    project.forget_calls()
    run = project.up(program.format("two", '[pulumi.Alias(name="one")]', ""))
    assert run.ok, run.text
    assert project.calls("create", "delete") == []
    assert set(project.resources()) >= {"two", "two-inner", "two-inner-a", "b"}
    assert not any("one" in r["urn"] for r in project.deployment()["resources"])
    moved = program.format("two", '[pulumi.Alias(type_="test:index:Group")]', ', "test:index:Moved"')
    assert project.up(moved).ok
    assert project.calls("create", "delete") == []


def test_duplicate_names_are_refused(project: Project) -> None:
    run = project.up('Thing("a")\nThing("a")')
    assert not run.ok
    assert "rename one" in run.text


def test_custom_timeouts_reach_the_provider_in_seconds(project: Project) -> None:
    project.up('Thing("a", O(custom_timeouts=pulumi.CustomTimeouts(create="1h30m", update="90s")), value=1)')
    assert project.calls("create")[0]["timeout"] == 5400
    project.up('Thing("a", O(custom_timeouts=pulumi.CustomTimeouts(create="1h30m", update="90s")), value=2)')
    assert project.calls("update")[0]["timeout"] == 90
    assert project.resources()["a"]["customTimeouts"] == {"create": 5400, "update": 90}


def test_import_takes_over_what_exists(project: Project) -> None:
    (project.cloud / "there.json").write_text('{"urn": "", "state": {"name": "there", "value": "x"}}')
    run = project.up('Thing("a", O(import_="there"), name="there", value="y")')
    assert run.ok, run.text
    assert run.steps()["a"] in ("import", "update")
    assert project.calls("create") == []
    assert project.objects()["there"]["value"] == "y"
    assert project.up('Thing("a", O(import_="there"), name="there", value="y")').changes == {"same": 2}
    missing = project.up('Thing("b", O(import_="nowhere"), name="nowhere")')
    assert not missing.ok
    assert "nothing exists under the id" in missing.text


def test_get_reads_a_resource_without_owning_it(project: Project) -> None:
    (project.cloud / "there.json").write_text('{"urn": "", "state": {"name": "there", "value": "x"}}')
    program = 'a = Thing("a", O(id="there"))\npulumi.export("v", a.value)'
    run = project.up(program)
    assert run.ok, run.text
    assert run.result.outputs == {"v": "x"}
    assert project.resources()["a"]["external"] is True
    assert project.destroy().ok
    assert set(project.objects()) == {"there"}


def test_resources_that_left_the_program_are_deleted(project: Project) -> None:
    project.up('a = Thing("a")\nThing("b", ref=a.name)')
    assert project.preview("").steps() == {"a": "delete", "b": "delete"}
    assert project.up("").ok
    assert project.names("delete") == ["b", "a"]


def test_failure_of_one_lets_the_others_finish(project: Project) -> None:
    run = project.up("""
a = Thing("a", fail="the cloud is full")
Thing("b", value=a.url)
Thing("c", O(depends_on=[a]))
Thing("d", value="fine")
""")
    assert run.result.exit_code == 1
    assert "the cloud is full" in run.text
    assert run.result.changes["skipped"] == 2
    assert "skipped, because a is missing" in run.text
    assert [r for r in project.resources() if r in "abcd"] == ["d"]
    assert project.deployment().get("pending_operations") is None
    fixed = project.up(
        'a = Thing("a")\nThing("b", value=a.url)\nThing("c", O(depends_on=[a]))\nThing("d", value="fine")'
    )
    assert fixed.changes == {"create": 3, "same": 2}


def test_nothing_is_deleted_by_a_run_that_failed(project: Project) -> None:
    project.up('Thing("a")')
    assert not project.up('Thing("b", fail="no")').ok
    assert "a" in project.resources()
    assert project.names("delete") == []


def test_partial_create_is_kept_and_finished_by_an_update(project: Project) -> None:
    run = project.up('a = Thing("a", notReady="pods crash")\nThing("b", value=a.url)')
    assert not run.ok
    assert "did not become ready: pods crash" in run.text
    kept = project.resources()["a"]
    assert kept["initErrors"] == ["pods crash"]
    assert kept["id"] in project.objects()
    again = project.up()  # the provider's update does not fail
    assert again.ok, again.text
    assert again.changes == {"same": 1, "update": 1, "create": 1}
    assert "initErrors" not in project.resources()["a"]


def test_check_failures_are_told(project: Project) -> None:
    run = project.preview('Thing("a", value="forbidden")')
    assert not run.ok
    assert "value: this value is forbidden" in run.text


def test_refresh_takes_in_what_changed_and_what_is_gone(project: Project) -> None:
    program = 'a = Thing("a", name="a", value="x")\nThing("b", O(depends_on=[a]), name="b")\nThing("c", name="c")'
    project.up(program)
    (project.cloud / "a.json").unlink()
    (project.cloud / "b.json").write_text('{"urn": "", "state": {"name": "b", "value": "drifted"}}')
    run = project.run("refresh")
    assert run.ok, run.text
    assert run.steps() == {"a": "delete", "b": "update"}
    assert "gone" in run.text
    assert "changed outside" in run.text
    assert "a" not in project.resources()
    assert project.resources()["b"]["outputs"]["value"] == "drifted"
    repaired = project.up(program)
    assert repaired.steps() == {"a": "create", "b": "update"}
    assert project.run("refresh").changes == {"same": 3}


def test_refresh_takes_in_silently_what_up_would_not_change(project: Project) -> None:
    project.up('Thing("a", name="a", value="x")\nThing("b", name="b")')
    (project.cloud / "a.computed").write_text("attached by another resource")
    run = project.run("refresh")
    assert run.ok and run.changes == {"same": 2}, run.text
    assert project.resources()["a"]["outputs"]["found"] == "attached by another resource"
    assert project.up('Thing("a", name="a", value="x")\nThing("b", name="b")').changes == {"same": 3}


def test_up_marks_how_properties_changed(project: Project) -> None:
    project.up('Thing("a", value="x", old=1)')
    run = project.up('Thing("a", value="y", more=1)')
    assert "[diff: +more, -old, ~value]" in run.text


def test_lists_of_objects_are_shown_one_item_a_line(project: Project) -> None:
    run = project.up('pulumi.export("rows", [{"b": 1, "a": "x"}, {"a": "y"}])\npulumi.export("flat", ["a", "b"])')
    assert '    rows:\n      - {"a": "x", "b": 1}\n      - {"a": "y"}' in run.text
    assert '    flat: ["a", "b"]' in run.text


def test_a_program_that_fails_is_not_said_to_be_in_order(project: Project) -> None:
    run = project.up('raise RuntimeError("no")')
    assert not run.ok
    assert "no changes" not in run.text


def test_a_line_of_progress_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(display, "PROGRESS_EVERY", 0.0)
    shown = display.Display(preview=False, emit=lines.append)
    for i in range(9):
        urn = f"urn:pulumi:dev::p::test:index:Thing::r{i}"
        shown.started("create", Resource(urn=urn, type="test:index:Thing", custom=True))

    async def wait_for_one() -> None:
        shown.open()
        while not lines:
            await asyncio.sleep(0)
        shown.close()

    asyncio.run(wait_for_one())
    assert "r0" in lines[0] and "r2" in lines[0] and "r3" not in lines[0]
    assert lines[0].endswith(" and 6 more")


def test_destroy_keeps_what_a_failed_delete_needs(project: Project) -> None:
    project.up('a = Thing("a")\nb = Thing("b", ref=a.name, undeletable=True)\nThing("c", ref=b.name)')
    run = project.destroy()
    assert not run.ok
    assert "it cannot be deleted" in run.text
    assert {"a", "b"} <= set(project.resources())
    assert "c" not in project.resources()
