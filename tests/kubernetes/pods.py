"""Pods for tests, made of the pause image and the host's own programs, so that no image has to be built."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

from localcloud import tools
from localcloud.kubernetes.api import Api
from localcloud.kubernetes.nodefiles import PAUSE_IMAGE
from localcloud.paths import Instance

WEB = "web"

_HOST = {
    "usr": ("/usr", "/usr"),
    "bin": ("/usr/bin", "/bin"),
    "lib": ("/usr/lib", "/lib"),
    "l64": ("/usr/lib64", "/lib64"),
}

# Answers with the pod's name.
_SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = os.uname().nodename.encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


def pod_spec(argv: list[str]) -> dict[str, Any]:
    """A pod that runs a program of the host."""
    return {
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": PAUSE_IMAGE,
                "command": argv,
                "volumeMounts": [{"name": n, "mountPath": at, "readOnly": True} for n, (_, at) in _HOST.items()],
            }
        ],
        "volumes": [{"name": n, "hostPath": {"path": source}} for n, (source, _) in _HOST.items()],
    }


def start_web(api: Api) -> None:
    """A DaemonSet of web servers with a Service, both named "web"; returns when it has been asked for."""
    spec = pod_spec(["/usr/bin/python3", "-c", _SERVER])
    spec["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    labels = {"app": WEB}
    api.apply(
        f"/apis/apps/v1/namespaces/default/daemonsets/{WEB}",
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": WEB},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        },
    )
    api.apply(
        f"/api/v1/namespaces/default/services/{WEB}",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": WEB},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    )


def ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return (
        any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        and "deletionTimestamp" not in pod["metadata"]
    )


def eventually(check: Callable[[], object], what: str, seconds: float = 40) -> Any:
    """Return the first true value of `check`; an assertion error that says `what` was awaited if there is none."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)


_FETCH = """
import json, sys, time, urllib.request
answers = {}
for url in sys.argv[1:]:
    for attempt in range(50):
        try:
            answers[url] = urllib.request.urlopen(url, timeout=2).read().decode()
            break
        except OSError as error:
            answers[url] = f"error: {error}"
            time.sleep(0.2)
print(json.dumps(answers))
"""


def fetch_from_pod(inst: Instance, pod: str, urls: list[str]) -> dict[str, str]:
    """What a pod gets from each address (it tries for some seconds)."""
    argv = ["exec", pod, "--", "/usr/bin/python3", "-c", _FETCH, *urls]

    # A kubelet that has just started knows its pods only after it has heard of them from the API server.
    def ask() -> str:
        done = _kubectl(inst, *argv)
        return done.stdout if done.returncode == 0 else ""

    return dict(json.loads(eventually(ask, f"exec in {pod}", 10)))


def kubectl(inst: Instance, *words: str) -> str:
    """Run the kubectl of the tools as administrator."""
    done = _kubectl(inst, *words)
    assert done.returncode == 0, f"kubectl {words}: {done.stderr}"
    return done.stdout


def _kubectl(inst: Instance, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(tools.tools_dir() / "kubectl"), f"--kubeconfig={inst.kubeconfig}", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)
