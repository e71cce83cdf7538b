"""The ring of keys: how a new one takes the place of the old, step by step."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from slurm_operator.desired import keys
from slurm_operator.desired.keys import CALM_SECONDS, DELIVERY_SECONDS, Ring

from desired.things import cluster, owner

OLD, NEW, THIRD = b"o" * 32, b"n" * 32, b"t" * 32


def loaded(ring: Ring, at: float) -> Ring:
    return replace(ring, loaded=at)


def test_a_rotation_accepts_then_signs_then_forgets() -> None:
    ring = keys.first(OLD)
    ring = keys.step(ring, NEW, 100, responding=True)
    assert (list(ring.keys.values()), ring.keys[ring.default]) == ([OLD, NEW], OLD)
    ring = keys.step(loaded(ring, 130), NEW, 130 + CALM_SECONDS, responding=True)
    assert (len(ring.keys), ring.keys[ring.default], ring.loaded) == (2, NEW, 0)
    ring = keys.step(loaded(ring, 200), NEW, 300, responding=True)
    assert list(ring.keys.values()) == [NEW]
    assert not ring.loaded  # the daemons are still told once


@pytest.mark.parametrize(
    ("when", "now", "responding"),
    [(0.0, 999.0, True), (130.0, 130 + CALM_SECONDS - 1, True), (130.0, 999.0, False)],
    ids=["nobody was told", "too early", "a node is silent"],
)
def test_no_step_is_taken_before_all_daemons_know(when: float, now: float, responding: bool) -> None:
    ring = loaded(keys.step(keys.first(OLD), NEW, 100, responding=True), when)
    assert keys.step(ring, NEW, now, responding=responding) is ring


def test_the_daemons_are_told_when_the_kubelets_had_time() -> None:
    ring = keys.step(keys.first(OLD), NEW, 100, responding=True)
    assert keys.due(ring, 100) == DELIVERY_SECONDS
    assert keys.due(ring, 100 + DELIVERY_SECONDS) <= 0


def test_another_change_in_the_middle_keeps_all_keys_until_the_last_is_in() -> None:
    ring = loaded(keys.step(keys.first(OLD), NEW, 100, responding=True), 130)
    ring = keys.step(ring, THIRD, 150, responding=True)
    assert list(ring.keys.values()) == [OLD, NEW, THIRD]
    assert not ring.loaded
    ring = keys.step(loaded(ring, 190), THIRD, 250, responding=True)
    assert ring.keys[ring.default] == THIRD
    assert list(keys.step(loaded(ring, 300), THIRD, 400, responding=True).keys.values()) == [THIRD]


def test_going_back_is_a_rotation_as_well() -> None:
    ring = loaded(keys.step(keys.first(OLD), NEW, 100, responding=True), 130)
    ring = keys.step(ring, OLD, 150, responding=True)
    assert list(ring.keys.values()) == [OLD]


def test_what_slurm_reads() -> None:
    ring = keys.step(keys.first(OLD), NEW, 100, responding=True)
    entries = json.loads(keys.jwks(ring))["keys"]
    assert [base64.urlsafe_b64decode(one["k"]) for one in entries] == [OLD, NEW]
    assert [one.get("use") for one in entries] == ["default", None]
    assert {(one["alg"], one["kty"]) for one in entries} == {("HS256", "oct")}
    assert len({one["kid"] for one in entries}) == 2


def test_the_secret_remembers_where_the_rotation_is() -> None:
    ring = loaded(keys.step(keys.first(OLD), NEW, 100.5, responding=True), 131.25)
    made = keys.secret(owner("Controller", "lab"), cluster(), ring, b"jwt")
    assert keys.read(made) == ring
    assert set(made["data"]) == {"slurm.jwks", "slurm.key", "jwt.key"}
    assert base64.b64decode(made["data"]["slurm.key"]) == OLD
    assert keys.read(None) is None
    assert keys.read({"metadata": {}, "data": {"slurm.jwks": "bm9uc2Vuc2U="}}) is None


def test_a_short_key_is_refused() -> None:
    with pytest.raises(keys.BadKey, match="15 bytes"):
        keys.first(b"x" * 15)
