"""Keys and certificates of one instance: made once, each repaired on its own if it is missing or does not fit."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localcloud.paths import Instance

LIFETIME = datetime.timedelta(days=3650)


@dataclass(frozen=True)
class Subject:
    """Whom a certificate names. Organization is the group, common name the user, in Kubernetes' reading."""

    name: str
    common_name: str
    organization: str | None = None
    sans: tuple[str, ...] = ()
    issuer: str = "ca"


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only root may read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def subjects(inst: Instance) -> list[Subject]:
    """Everyone of the control plane who has a certificate."""
    service_ip = str(next(inst.service_network.hosts()))
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    return [
        Subject("apiserver", "kube-apiserver", sans=(*names, "localhost", "127.0.0.1", str(inst.host_ip), service_ip)),
        Subject("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Subject("front-proxy-client", "front-proxy-client", issuer="front-proxy-ca"),
        Subject("admin", "admin", "system:masters"),
        Subject("controller-manager", "system:kube-controller-manager"),
        Subject("scheduler", "system:kube-scheduler"),
        Subject("kube-proxy", "system:kube-proxy"),
    ]


def node_subject(name: str, address: str) -> Subject:
    """The kubelet's certificate: client towards the API server, server for logs and exec."""
    return Subject(f"node-{name}", f"system:node:{name}", "system:nodes", (name, address))


def ensure_pki(inst: Instance) -> Path:
    """Make what is missing below state/pki, and the administrator's kubeconfig; returns that directory."""
    pki = inst.state / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    pki.chmod(0o700)
    for authority in ("ca", "front-proxy-ca"):
        _ensure_authority(pki, authority, f"slipway-{inst.name}-{authority}")
    for subject in subjects(inst):
        ensure_certificate(pki, subject)
    _ensure_signing_key(pki)
    for name in ("controller-manager", "scheduler", "kube-proxy"):
        write_kubeconfig(inst, name, pki / f"{name}.kubeconfig")
    write_kubeconfig(inst, "admin", inst.kubeconfig)
    return pki


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + LIFETIME)
    )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _ensure_authority(pki: Path, name: str, common_name: str) -> None:
    key_file, certificate_file = pki / f"{name}.key", pki / f"{name}.crt"
    if key_file.exists() and certificate_file.exists():
        return
    key = _new_key(key_file)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    certificate = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(certificate_file, certificate.public_bytes(Encoding.PEM))


def _names(sans: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for text in sans:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            found.append(x509.DNSName(text))
    return found


def _name(subject: Subject) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)]
    if subject.organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.organization))
    return x509.Name(parts)


def _fits(pki: Path, subject: Subject, authority: x509.Certificate) -> bool:
    """Whether the certificate on disk is whole, signed by this authority, and for this subject and its names."""
    try:
        certificate = x509.load_pem_x509_certificate((pki / f"{subject.name}.crt").read_bytes())
        key = _load_key(pki / f"{subject.name}.key")
        certificate.verify_directly_issued_by(authority)
    except (OSError, ValueError, InvalidSignature):
        return False
    try:
        names = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        names = []
    return (
        certificate.public_key() == key.public_key()
        and certificate.subject == _name(subject)
        and names == _names(subject.sans)
    )


def ensure_certificate(pki: Path, subject: Subject) -> None:
    """Make the key and certificate of a subject unless they exist and fit."""
    authority = x509.load_pem_x509_certificate((pki / f"{subject.issuer}.crt").read_bytes())
    if _fits(pki, subject, authority):
        return
    authority_key = _load_key(pki / f"{subject.issuer}.key")
    key = _new_key(pki / f"{subject.name}.key")
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        _builder(_name(subject), authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if subject.sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(subject.sans)), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    write_private(pki / f"{subject.name}.crt", certificate.public_bytes(Encoding.PEM))


def _ensure_signing_key(pki: Path) -> None:
    """The key that signs service account tokens."""
    if not (pki / "sa.key").exists():
        _new_key(pki / "sa.key")
    if not (pki / "sa.pub").exists():
        public = _load_key(pki / "sa.key").public_key()
        write_private(pki / "sa.pub", public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def kubeconfig_text(cluster: str, server: str, user: str, user_data: dict[str, Any], ca: bytes | None) -> str:
    """A kubeconfig with one context. `ca` is PEM; None for a server without TLS."""
    cluster_data = {"server": server}
    if ca is not None:
        cluster_data["certificate-authority-data"] = base64.b64encode(ca).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": cluster_data}],
        "users": [{"name": user, "user": user_data}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }
    return yaml.safe_dump(document, sort_keys=False)


def write_kubeconfig(inst: Instance, subject: str, path: Path) -> None:
    """Write the kubeconfig of a certificate's subject, unless it is there as it should be."""
    pki = inst.state / "pki"
    data = {
        "client-certificate-data": base64.b64encode((pki / f"{subject}.crt").read_bytes()).decode(),
        "client-key-data": base64.b64encode((pki / f"{subject}.key").read_bytes()).decode(),
    }
    authority = (pki / "ca.crt").read_bytes()
    text = kubeconfig_text(f"slipway-{inst.name}", inst.apiserver_url, subject, data, authority).encode()
    if not path.exists() or path.read_bytes() != text:
        write_private(path, text)
