"""A stack's config: one schema, read once, judged before anything is registered."""

from components.settings.errors import Problem, SettingsError
from components.settings.load import load, parse
from components.settings.model import IMAGES, Settings, User
from components.settings.partition import Partition

__all__ = ["IMAGES", "Partition", "Problem", "Settings", "SettingsError", "User", "load", "parse"]
