"""The rules of the pack, one concern per file. They see what any program registers and import nothing of ours."""

from .busy_pods import BUSY_PODS_HAVE_PDB
from .gpu_pools import GPU_POOL_TAINTED
from .rule import Rule
from .wildcards import IAM_NO_WILDCARD_ACTION

RULES: tuple[Rule, ...] = (GPU_POOL_TAINTED, BUSY_PODS_HAVE_PDB, IAM_NO_WILDCARD_ACTION)

__all__ = ["RULES"]
