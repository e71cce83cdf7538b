"""sshd in login pods and in workers: its settings, its host keys, and SSSD for users from a directory.

Everything that people change while others are logged in (settings, root's keys, sssd.conf) is mounted as a folder and
taken over by the running daemons; no pod is replaced for it.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from slurm_operator.api.common import KeySelector
from slurm_operator.api.names import SSH_PORT
from slurm_operator.desired.conf_syntax import BadConf
from slurm_operator.desired.parts import Map, meta
from slurm_operator.kube.resources import Object

HOST_KEY_TYPES = ("ed25519", "ecdsa", "rsa")
SETTINGS_FOLDER = "/etc/ssh/sshd_config.d"
EXTRA_FILE = "50-extra.conf"
ROOT_FILE = "60-root.conf"
ROOT_KEYS_FILE = "root_authorized_keys"

# sshd in a worker, beside slurmd's own: its privilege separation, port 22 and terminals.
WORKER_CAPABILITIES = ("AUDIT_WRITE", "FSETID", "NET_BIND_SERVICE", "SYS_CHROOT")

# The keys are read by a command, because sshd refuses files in a folder that others may write, as volumes are.
_ROOT_MATCH = f"""\
Match User root
  PermitRootLogin prohibit-password
  AuthorizedKeysCommand /usr/bin/cat {SETTINGS_FOLDER}/{ROOT_KEYS_FILE}
  AuthorizedKeysCommandUser nobody
"""

# Keywords of sshd_config(5) of OpenSSH 10, and the old names that it still takes.
_KEYWORDS = """
    AcceptEnv AddressFamily AgentSocketPath AllowAgentForwarding AllowGroups AllowStreamLocalForwarding
    AllowTcpForwarding AllowUsers AuthenticationMethods AuthorizedKeysCommand AuthorizedKeysCommandUser
    AuthorizedKeysFile AuthorizedPrincipalsCommand AuthorizedPrincipalsCommandUser AuthorizedPrincipalsFile Banner
    CASignatureAlgorithms ChallengeResponseAuthentication ChannelTimeout ChrootDirectory Ciphers ClientAliveCountMax
    ClientAliveInterval Compression DebianBanner DenyGroups DenyUsers DisableForwarding ExposeAuthInfo
    FingerprintHash ForceCommand GatewayPorts GSSAPIAuthentication GSSAPICleanupCredentials GSSAPIKexAlgorithms
    GSSAPIKeyExchange GSSAPIStoreCredentialsOnRekey GSSAPIStrictAcceptorCheck HostbasedAcceptedAlgorithms
    HostbasedAcceptedKeyTypes HostbasedAuthentication HostbasedUsesNameFromPacketOnly HostCertificate HostKey
    HostKeyAgent HostKeyAlgorithms IgnoreRhosts IgnoreUserKnownHosts Include IPQoS KbdInteractiveAuthentication
    KerberosAuthentication KerberosGetAFSToken KerberosOrLocalPasswd KerberosTicketCleanup KexAlgorithms
    ListenAddress LoginGraceTime LogLevel LogVerbose MACs Match MaxAuthTries MaxSessions MaxStartups ModuliFile
    PAMServiceName PasswordAuthentication PermitEmptyPasswords PermitListen PermitOpen PermitRootLogin PermitTTY
    PermitTunnel PermitUserEnvironment PermitUserRC PerSourceMaxStartups PerSourceNetBlockSize PerSourcePenalties
    PerSourcePenaltyExemptList PidFile Port PrintLastLog PrintMotd PubkeyAcceptedAlgorithms PubkeyAcceptedKeyTypes
    PubkeyAuthentication PubkeyAuthOptions RefuseConnection RekeyLimit RequiredRSASize RevokedKeys
    SecurityKeyProvider SetEnv SshdAuthPath SshdSessionPath StreamLocalBindMask StreamLocalBindUnlink StrictModes
    Subsystem SyslogFacility TCPKeepAlive TrustedUserCAKeys UnusedConnectionTimeout UseDNS UsePAM VersionAddendum
    X11DisplayOffset X11Forwarding WarnWeakCrypto X11UseLocalhost XAuthLocation
"""
_BY_NAME: Final = {keyword.lower(): keyword for keyword in _KEYWORDS.split()}
# A pod's Service, probes and PAM rules rely on these.
_FIXED = frozenset({"port", "listenaddress", "usepam", "hostkey", "pidfile"})


def check_sshd(text: str, where: str) -> None:
    """Raises BadConf at the first line that sshd does not know; what a value means is left to `sshd -t` in the pod."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().replace("=", " ", 1).split(None, 1)
        if not words or words[0].startswith("#"):
            continue
        keyword = words[0].lower()
        if keyword not in _BY_NAME:
            close = get_close_matches(keyword, _BY_NAME, 1)
            hint = f"; did you mean {_BY_NAME[close[0]]}?" if close else ""
            raise BadConf(f"{where}, line {number}: {words[0]} is no keyword of sshd_config{hint}")
        if keyword in _FIXED:
            raise BadConf(f"{where}, line {number}: {words[0]} is set by the operator")
        if len(words) == 1 or not words[1].strip():
            raise BadConf(f"{where}, line {number}: {words[0]} has no value")


def settings_map(
    owner: Object, name: str, own: dict[str, str], *, extra: str, where: str, root_keys: str = ""
) -> Object:
    """ConfigMap with what goes into sshd_config.d, and root's keys. Raises BadConf, naming the field `where`."""
    check_sshd(extra, where)
    data = {EXTRA_FILE: extra.rstrip("\n") + "\n"}
    if root_keys.strip():
        data |= {ROOT_FILE: _ROOT_MATCH, ROOT_KEYS_FILE: root_keys.rstrip("\n") + "\n"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(name, owner["metadata"]["namespace"], own, owner=owner),
        "data": data,
    }


def volumes(settings: str, host_keys: str, sssd: KeySelector | None) -> list[Map]:
    """Volumes of a pod with sshd: ConfigMap `settings`, Secret `host_keys`, and sssd.conf if there is one."""
    items = [{"key": file, "path": file, "mode": mode} for file, mode in _host_key_files()]
    made: list[Map] = [
        {"name": "ssh-config", "configMap": {"name": settings, "defaultMode": 0o644}},
        {"name": "ssh-host-keys", "secret": {"secretName": host_keys, "items": items}},
    ]
    if sssd is not None and sssd.name:
        conf = {"secretName": sssd.name, "items": [{"key": sssd.key, "path": "sssd.conf", "mode": 0o600}]}
        made.append({"name": "sssd-conf", "secret": conf})
    return made


def mounts(sssd: KeySelector | None) -> list[Map]:
    """Where these volumes go in the container with sshd."""
    made: list[Map] = [{"name": "ssh-config", "mountPath": SETTINGS_FOLDER, "readOnly": True}]
    made += [
        {"name": "ssh-host-keys", "mountPath": f"/etc/ssh/{file}", "subPath": file, "readOnly": True}
        for file, _ in _host_key_files()
    ]
    if sssd is not None and sssd.name:
        made.append({"name": "sssd-conf", "mountPath": "/etc/sssd", "readOnly": True})
    return made


def add_to(worker: Map, sssd: KeySelector | None) -> None:
    """Give a worker's container what sshd needs: mounts, its port, and capabilities."""
    worker["volumeMounts"] += mounts(sssd)
    worker["ports"].append({"name": "ssh", "containerPort": SSH_PORT, "protocol": "TCP"})
    worker["securityContext"]["capabilities"]["add"] += WORKER_CAPABILITIES


def _host_key_files() -> list[tuple[str, int]]:
    return [
        (f"ssh_host_{kind}_key{suffix}", mode)
        for kind in HOST_KEY_TYPES
        for suffix, mode in (("", 0o600), (".pub", 0o644))
    ]
