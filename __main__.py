"""The Pulumi program: settings in, platform out."""

from pathlib import Path

import pulumi

from components.platform import Platform
from components.settings import load

settings = load(Path(__file__).resolve().parent)
platform = Platform("slipway", settings, pulumi.get_stack())
for name, value in platform.outputs.items():
    pulumi.export(name, value)
