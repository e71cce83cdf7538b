"""The policy pack. Only this call: the pack serves from its constructor, which never returns."""

from pulumi_policy import EnforcementLevel, PolicyPack
from slipway_policies import RULES  # type: ignore[import-not-found]

PolicyPack("slipway", [rule.policy() for rule in RULES], EnforcementLevel.MANDATORY)
