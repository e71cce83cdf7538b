"""Tokens, node predicates and host lists."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_operator.slurm import states
from slurm_operator.slurm.hostlist import compress, expand
from slurm_operator.slurm.token import LIFETIME_SECONDS, RENEW_SECONDS, TokenSource, sign
from slurm_operator.slurm.types import NodeInfo


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_token_is_a_signed_hs256_jwt() -> None:
    head, body, mac = sign(b"key", "slurm", now=1000).split(".")
    assert json.loads(decode(head)) == {"alg": "HS256", "typ": "JWT"}
    assert json.loads(decode(body)) == {"iat": 970, "exp": 1900, "sun": "slurm"}
    assert decode(mac) == hmac.new(b"key", f"{head}.{body}".encode(), hashlib.sha256).digest()


def test_token_is_kept_until_it_is_time_to_renew() -> None:
    now = 1000.0
    tokens = TokenSource(b"key", "slurm", clock=lambda: now)
    first = tokens()
    now += LIFETIME_SECONDS - RENEW_SECONDS - 1
    assert tokens() == first
    now += 2
    second = tokens()
    assert second != first
    now -= 5000  # a clock that was set back: the token would come from the future
    assert tokens() not in (first, second)
    with pytest.raises(ValueError, match="empty"):
        TokenSource(b"", "slurm")


def node(*words: str, alloc_cpus: int = 0) -> NodeInfo:
    return NodeInfo("n", states=frozenset(words), alloc_cpus=alloc_cpus)


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        (("IDLE",), True),
        (("IDLE", "DYNAMIC_NORM", "NOT_RESPONDING"), True),
        (("IDLE", "DRAIN"), True),
        (("IDLE", "PLANNED", "CLOUD", "POWERED_DOWN"), True),
        (("DOWN", "DRAIN", "INVALID_REG"), True),
        (("FUTURE",), True),
        (("ALLOCATED",), False),
        (("MIXED", "DRAIN"), False),
        (("IDLE", "COMPLETING"), False),
        (("DOWN", "COMPLETING"), False),
        (("UNKNOWN",), False),
        (("ERROR",), False),
        (("INVALID",), False),
        (("IDLE", "SOMETHING_NEW"), False),
        (("DRAIN",), False),
        ((), False),
    ],
)
def test_idle_only_when_slurm_says_so(words: tuple[str, ...], idle: bool) -> None:
    assert states.is_idle(node(*words)) is idle
    assert states.is_busy(node(*words)) is not idle


def test_allocated_cpus_are_work_whatever_the_state() -> None:
    assert states.is_busy(node("IDLE", alloc_cpus=1))


def test_drained_and_draining() -> None:
    assert states.is_drained(node("IDLE", "DRAIN"))
    assert not states.is_drained(node("MIXED", "DRAIN"))
    assert states.is_draining(node("MIXED", "DRAIN"))
    assert not states.is_draining(node("IDLE", "DRAIN"))
    assert not states.is_schedulable(node("IDLE", "DRAIN"))
    assert states.is_schedulable(node("MIXED", "DYNAMIC_NORM"))
    assert states.is_down(node("IDLE", "FAIL"))


def test_only_our_reasons_are_ours() -> None:
    assert states.ours("slurm-operator: scale-in")
    assert not states.ours("admin: see slurm-operator: x")
    assert not states.ours("")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("a[1-2]b[3-4],c", ["a1b3", "a1b4", "a2b3", "a2b4", "c"]),
        ("gpu-0,gpu-1", ["gpu-0", "gpu-1"]),
    ],
)
def test_expand(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[3-1]", "n[a-b]", "n[1-9999999]", "a[[1]]"])
def test_bad_host_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand(text)


@given(st.sets(st.from_regex(r"[a-z]{1,3}(-[a-z])?[0-9]{0,4}", fullmatch=True), max_size=40))
def test_compress_and_expand_are_inverse(names: set[str]) -> None:
    assert sorted(expand(compress(names))) == sorted(names)
    assert compress({"n1", "n2", "n3", "x", "n008", "n009"}) == "x,n[1-3],n[008-009]"
