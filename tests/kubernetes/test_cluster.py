"""The local cluster does what a cluster does: pods run, reach each other, and find names."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request

import pytest
import yaml

from localcloud import tools
from localcloud.kubernetes import addons, cluster, controlplane, nodes, preflight, processes
from localcloud.kubernetes.api import Api, ApiError
from localcloud.kubernetes.errors import ClusterError
from localcloud.kubernetes.specs import NodeSpec, Taint
from localcloud.paths import REPOSITORY, Instance
from tests.clusters import own_instance
from tests.kubernetes.conftest import SPECS, Cluster
from tests.kubernetes.pods import eventually, fetch_from_pod, kubectl, ready

pytestmark = pytest.mark.cluster


def test_a_second_start_changes_nothing(own: Cluster) -> None:
    bin_dir = tools.ensure_tools()
    before = [processes.running(daemon) for daemon in controlplane.daemons(own.inst, bin_dir)]
    said: list[str] = []
    cluster.start_control_plane(said.append, own.inst)
    assert None not in before
    assert before == [processes.running(daemon) for daemon in controlplane.daemons(own.inst, bin_dir)]
    assert said == []


def test_nodes_carry_what_their_specification_says(own: Cluster) -> None:
    objects = {obj["metadata"]["name"]: obj for obj in own.api.request("GET", "/api/v1/nodes")["items"]}
    assert set(objects) == set(own.names)
    for spec in SPECS:
        obj = objects[spec.name]
        assert spec.all_labels().items() <= obj["metadata"]["labels"].items()
        wanted = [taint.as_json() for taint in spec.taints]
        assert [t for t in obj["spec"].get("taints", []) if not t["key"].startswith("node.kubernetes.io/")] == wanted
        assert obj["spec"].get("providerID") == spec.provider_id
        assert obj["status"]["nodeInfo"]["kubeletVersion"] == tools.kubernetes_version()


def test_pods_of_all_nodes_reach_each_other_services_and_names(own: Cluster) -> None:
    pods = own.ready_web_pods()
    addresses = {f"http://{pod['status']['podIP']}:8000/": pod["metadata"]["name"] for pod in pods}
    names = ["http://web/", "http://web.default.svc.cluster.local/"]
    for pod in pods:
        answers = fetch_from_pod(own.inst, pod["metadata"]["name"], [*addresses, *names])
        assert {url: answers[url] for url in addresses} == addresses
        assert all(answers[url] in addresses.values() for url in names)


def test_the_host_reaches_pods_and_services(own: Cluster) -> None:
    pod = own.ready_web_pods()[0]
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8000/", timeout=5) as answer:
        assert answer.read().decode() == pod["metadata"]["name"]
    service = own.api.request("GET", "/api/v1/namespaces/default/services/web")["spec"]["clusterIP"]

    def ask() -> bytes:
        with urllib.request.urlopen(f"http://{service}/", timeout=5) as answer:
            return bytes(answer.read())

    assert ask().decode().startswith("web-")


def test_applying_coredns_again_changes_nothing(own: Cluster) -> None:
    path = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
    before = own.api.request("GET", path)["metadata"]["generation"]
    addons.apply_coredns(own.inst, own.api)
    assert own.api.request("GET", path)["metadata"]["generation"] == before


def test_a_token_is_refused_while_nobody_can_check_it(own: Cluster) -> None:
    kubeconfig = own.inst.run / "token.kubeconfig"
    document = yaml.safe_load(own.inst.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": "k8s-aws-v1.unknown"}
    kubeconfig.write_text(yaml.safe_dump(document))
    with pytest.raises(ApiError) as caught:
        Api(kubeconfig).request("GET", "/api/v1/nodes", timeout=30)
    assert caught.value.status == 401


def test_labels_and_taints_of_a_running_node_can_be_changed_and_others_stay(own: Cluster) -> None:
    path = "/api/v1/nodes/n2"
    kubectl(own.inst, "label", "node", "n2", "someone-elses=label")
    kubectl(own.inst, "taint", "node", "n2", "theirs=1:PreferNoSchedule")
    changed = NodeSpec(
        "n2", zone="us-east-1b", labels={"new": "label"}, taints=(Taint("busy", "", "PreferNoSchedule"),)
    )
    cluster.add_node(changed, inst=own.inst)
    obj = own.api.request("GET", path)
    labels = obj["metadata"]["labels"]
    assert (labels["new"], labels["someone-elses"]) == ("label", "label")
    assert "eks.amazonaws.com/nodegroup" not in labels
    assert {taint["key"] for taint in obj["spec"]["taints"]} == {"busy", "theirs"}
    cluster.add_node(SPECS[1], inst=own.inst)
    kubectl(own.inst, "taint", "node", "n2", "theirs-")
    assert "taints" not in own.api.request("GET", path)["spec"]


def test_a_drained_node_has_no_pods_and_takes_none(own: Cluster) -> None:
    spec = {"containers": [{"name": "c", "image": "slipway.local/pause:1"}], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "victim"}, "spec": spec | {"nodeName": "n2"}}
    own.api.request("POST", "/api/v1/namespaces/default/pods", pod)
    path = "/api/v1/namespaces/default/pods/victim"
    eventually(lambda: ready(own.api.request("GET", path)), "the pod to run")
    cluster.drain_node("n2", inst=own.inst)
    assert own.api.get(path) is None
    assert own.api.request("GET", "/api/v1/nodes/n2")["spec"]["unschedulable"] is True
    cluster.cordon_node("n2", False, inst=own.inst)
    assert "unschedulable" not in own.api.request("GET", "/api/v1/nodes/n2")["spec"]


def test_commands_run_inside_a_node(own: Cluster) -> None:
    done = cluster.run_in_node(
        "n1", ["sh", "-c", "uname -n; ls -d /var/lib/kubelet; kubectl version --client"], own.inst
    )
    assert done.stdout.splitlines()[:2] == ["n1", "/var/lib/kubelet"]
    assert tools.kubernetes_version() in done.stdout


def test_memory_of_pods_is_counted(own: Cluster) -> None:
    own.ready_web_pods()
    memory = cluster.pss(own.inst)
    assert memory["kubelet"][0] == 3
    assert memory["python3"][0] == 3
    assert 0 < memory["kube-apiserver"][1] < 1000


def test_the_status_names_every_part(own: Cluster) -> None:
    text = "\n".join(cluster.status(own.inst))
    assert "kube-scheduler: running" in text
    assert "docker-registry: not running" in text
    assert all(f"node {name}" in text for name in own.names)


def test_a_running_cluster_is_no_problem_for_its_own_next_start(own: Cluster) -> None:
    assert preflight.problems(own.inst) == []


def test_a_second_instance_with_the_same_numbers_is_told_who_has_them(own: Cluster) -> None:
    twin = Instance(name="twin", net=own.inst.net, state=own.inst.state.with_name("twin"))
    text = "\n".join(preflight.problems(twin))
    assert f"port {twin.etcd_port}" in text
    assert "etcd --name=slipway" in text
    assert "SLIPWAY_NET" in text


def test_another_network_number_for_the_same_state_is_refused(own: Cluster) -> None:
    moved = Instance(name=own.inst.name, net=60, state=own.inst.state)
    with pytest.raises(ClusterError, match=f"SLIPWAY_NET={own.inst.net}"):
        cluster.start_control_plane(inst=moved)


def test_a_node_that_is_not_there_is_named_with_those_that_are(own: Cluster) -> None:
    with pytest.raises(ClusterError, match=r"no node 'n9'; there is: ip-10-1-2-3.*, n1, n2"):
        cluster.kill_node("n9", own.inst)


def test_a_removed_node_is_forgotten_and_its_number_is_used_again(own: Cluster) -> None:
    cluster.add_node(NodeSpec("passing"), inst=own.inst)
    cluster.wait_ready(["passing"], own.inst)
    number = nodes.find(own.inst, "passing").index
    cluster.remove_node("passing", inst=own.inst)
    assert own.api.get("/api/v1/nodes/passing") is None
    assert not any(pod["spec"]["nodeName"] == "passing" for pod in own.web_pods())
    assert not (own.inst.state / "nodes" / "passing").exists()
    assert not list((own.inst.state / "pki").glob("node-passing*"))
    cluster.remove_node("passing", inst=own.inst)
    cluster.add_node(NodeSpec("next"), inst=own.inst)
    assert nodes.find(own.inst, "next").index == number
    cluster.remove_node("next", inst=own.inst)


def test_errors_of_the_command_line_are_one_message(own: Cluster) -> None:
    variables = {"SLIPWAY_INSTANCE": own.inst.name, "SLIPWAY_NET": str(own.inst.net)}
    argv = [sys.executable, "-m", "localcloud.kubernetes", "node", "stop", "nobody"]
    done = subprocess.run(argv, capture_output=True, text=True, env=variables, cwd=REPOSITORY, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no Kubernetes node 'nobody'; there is: ")
    assert "Traceback" not in done.stderr


def test_an_existing_cluster_is_used_as_it_is(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_instance() as elsewhere:
        # Credentials of any kind work, here those of an exec plugin.
        config = yaml.safe_load(own.inst.kubeconfig.read_text())
        pair = {"clientCertificateData": "client-certificate-data", "clientKeyData": "client-key-data"}
        have, version = config["users"][0]["user"], "client.authentication.k8s.io/v1"
        status = {key: base64.b64decode(have[name]).decode() for key, name in pair.items()}
        theirs, given = elsewhere.state / "run" / "theirs", elsewhere.state / "run" / "credential"
        theirs.parent.mkdir(parents=True)
        given.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))
        plugin = {"apiVersion": version, "command": "cat", "args": [str(given)], "interactiveMode": "Never"}
        config["users"][0]["user"] = {"exec": plugin}
        theirs.write_text(yaml.safe_dump(config))
        monkeypatch.setenv("SLIPWAY_KUBECONFIG", str(theirs))
        cluster.start_control_plane(inst=elsewhere)
        monkeypatch.delenv("SLIPWAY_KUBECONFIG")  # the instance remembers it
        cluster.add_node(NodeSpec("not-added"), inst=elsewhere)
        assert cluster.ensure_all(inst=elsewhere) == []
        assert sorted(cluster.node_names(elsewhere)) == sorted(own.names)
        cluster.wait_ready(own.names, elsewhere)
        addons.apply_coredns(elsewhere)
        dns = own.api.request("GET", "/api/v1/namespaces/kube-system/services/kube-dns")
        assert dns["spec"]["clusterIP"] == str(own.inst.dns_ip)
        with pytest.raises(ClusterError, match="not ours to switch"):
            cluster.kill_node("n1", elsewhere)
        cluster.wipe(inst=elsewhere)
        assert cluster.status(elsewhere) == [f"existing cluster of {theirs}: ready"]
        monkeypatch.setenv("SLIPWAY_KUBECONFIG", str(own.inst.kubeconfig))
        with pytest.raises(ClusterError, match=f"was started with {theirs}, and now"):
            cluster.start_control_plane(inst=elsewhere)
        monkeypatch.delenv("SLIPWAY_KUBECONFIG")
    assert own.api.ready()
