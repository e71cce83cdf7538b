"""The reconcilers, one per kind."""

from __future__ import annotations

from slurm_operator.controllers.accounting import AccountingController
from slurm_operator.controllers.cluster import ClusterController
from slurm_operator.controllers.cordons import CordonController
from slurm_operator.controllers.deployments import LoginSetController, RestApiController
from slurm_operator.controllers.drainpolicy import DrainPolicyController
from slurm_operator.controllers.mirror import MirrorController
from slurm_operator.controllers.nodeset import NodeSetController
from slurm_operator.controllers.token import TokenController
from slurm_operator.runtime.controller import Controller
from slurm_operator.runtime.manager import Manager


def all_controllers(manager: Manager) -> list[Controller]:
    """One of each, in the order of what depends on what."""
    nodesets = NodeSetController(manager)
    return [
        ClusterController(manager),
        RestApiController(manager),
        LoginSetController(manager),
        nodesets,
        MirrorController(manager, nodesets),
        CordonController(manager),
        DrainPolicyController(manager),
        AccountingController(manager),
        TokenController(manager),
    ]
