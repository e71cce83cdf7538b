"""Command line: run the operator, or print its CRDs or roles."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Sequence

from slurm_operator import __version__
from slurm_operator.runtime import log
from slurm_operator.runtime.settings import Settings, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 stopped by a signal, 1 leadership or a vital part lost, 2 cannot start."""
    command = parse(arguments)
    if command.name == "crds":
        from slurm_operator.api.crd import render_all

        sys.stdout.write(render_all())
        return 0
    if command.name == "rbac":
        from slurm_operator.kube.rbac import render

        sys.stdout.write(render(namespaces=command.settings.namespaces))
        return 0
    log.set_up(command.settings.log_level)
    if command.name == "release":
        from slurm_operator.release import release

        return asyncio.run(release(command.settings))
    # Most garbage is freed by counting; full collections of a big cache would only stall the loop.
    gc.set_threshold(20_000, 20, 50)
    code = asyncio.run(_run(command.settings))
    if code == 1:
        # Leadership may be lost: end before anything that is still under way can write.
        logging.shutdown()
        os._exit(code)
    return code


async def _run(settings: Settings) -> int:
    from slurm_operator.controllers import all_controllers
    from slurm_operator.kube.auth import AccessError, load_access
    from slurm_operator.kube.client import KubeClient
    from slurm_operator.runtime.manager import Manager
    from slurm_operator.runtime.metrics import Metrics

    logger = logging.getLogger("slurm_operator")
    try:
        access = load_access(settings.kubeconfig)
    except AccessError as error:
        logger.error("%s", error)
        return 2
    metrics = Metrics()
    async with (
        KubeClient(access, guard=settings.rbac_guard, observe=metrics.observe_kube) as kube,
        KubeClient(access, guard=settings.rbac_guard, observe=metrics.observe_kube) as lease_client,
    ):
        manager = Manager(settings, kube, lease_client, metrics)
        manager.add(all_controllers(manager))
        logger.info("slurm-operator %s, API server %s", __version__, access.server)
        try:
            return await manager.run()
        except OSError as error:
            logger.error("cannot start: %s", error)
            return 2


if __name__ == "__main__":
    sys.exit(main())
