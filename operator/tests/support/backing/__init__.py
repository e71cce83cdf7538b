"""What a Slurm cluster leans on, for tests: a real MariaDB and a real OpenLDAP, in pods.

They stand in for RDS and for a company's directory. They keep nothing when their pod ends, and have one user each.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from images.tags import versions
from localcloud.images.base import ensure_base
from localcloud.images.buildah import PREFIX, Store
from localcloud.kubernetes.locks import hold
from localcloud.paths import ECR_REGISTRY, Instance

FOLDER = Path(__file__).resolve().parent
DATABASE, USER = "slurm_acct_db", "slurm"
TLS_FOLDER = "/tls"
BASE_DN = "dc=example,dc=com"
LDAP_PASSWORD = "read only"

# A snapshot isolation of its own and short lock times are what slurmdbd warns of (slurmdbd 26.05 with MariaDB 11.8).
_MARIADB = """
[ -d /data/mysql ] ||
  mariadb-install-db --no-defaults --user=mysql --datadir=/data --auth-root-authentication-method=normal >/dev/null
exec mariadbd --no-defaults --user=mysql --datadir=/data --bind-address=0.0.0.0 --socket=/tmp/db.sock \
  --innodb-snapshot-isolation=OFF --innodb-lock-wait-timeout=900 --innodb-buffer-pool-size=64M \
  --init-file=/conf/init.sql {options}
"""
_CERTIFICATES = """
cd /tls
exec 2>/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem
openssl req -newkey rsa:2048 -nodes -subj /CN={host} -addext subjectAltName=DNS:{host} -keyout key.pem -out req.pem
openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copy -out cert.pem
chown mysql *.pem
"""
_SLAPD = """
rm -rf /data/config /data/db
mkdir -p /run/slapd /data/db /data/config
slapadd -F /data/config -n 0 -l /conf/config.ldif
slapadd -F /data/config -n 1 -l /conf/people.ldif
exec slapd -F /data/config -h ldap://0.0.0.0:389 -d 0
"""


def image(inst: Instance) -> str:
    """Reference of the image, built and pushed if the instance's registry lacks it."""
    tag = hashlib.sha256((FOLDER / "Dockerfile").read_bytes()).hexdigest()[:12]
    store, name = Store(), f"{PREFIX}/backing:{tag}"
    with hold(store.lock, wait=1800, log=lambda _: None, what="the images' cache"):
        store.prepare()
        if name not in store.images():
            base = versions()["BASE"]
            ensure_base(store, base, lambda _: None)
            store.build(FOLDER / "Dockerfile", FOLDER, name, "backing", {"BASE": base})
        store.push(name, f"{inst.registry}/slipway/backing:{tag}", "push-backing")
    return f"{ECR_REGISTRY}/slipway/backing:{tag}"


def mariadb(image: str, namespace: str, name: str, password: str, *, tls: bool = False) -> list[dict[str, Any]]:
    """A database server at `name`.`namespace`:3306 whose user `slurm` may do anything in slurm_acct_db.

    With `tls` it takes only encrypted connections (as RDS with require_secure_transport), and its CA is /tls/ca.pem in
    its pod.
    """
    escaped = password.replace("\\", "\\\\").replace("'", "''")
    sql = (
        f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
        f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{escaped}';\n"
        f"GRANT ALL ON {DATABASE}.* TO '{USER}'@'%';\n"
    )
    host = f"{name}.{namespace}"
    certificates = _CERTIFICATES.format(host=host) if tls else ""
    options = "--require-secure-transport=ON --ssl-ca=/tls/ca.pem --ssl-cert=/tls/cert.pem --ssl-key=/tls/key.pem"
    script = certificates + _MARIADB.format(options=options if tls else "--skip-ssl")
    return _server(image, namespace, name, 3306, script, {"init.sql": sql})


def slapd(image: str, namespace: str, name: str, people: str) -> list[dict[str, Any]]:
    """A directory at ldap://`name`.`namespace` with the entries of `people` (LDIF) below dc=example,dc=com."""
    config = f"""\
dn: cn=config
objectClass: olcGlobal
cn: config
olcPidFile: /run/slapd/slapd.pid

dn: cn=module,cn=config
objectClass: olcModuleList
cn: module
olcModulePath: /usr/lib/ldap
olcModuleLoad: back_mdb

dn: cn=schema,cn=config
objectClass: olcSchemaConfig
cn: schema

include: file:///etc/ldap/schema/core.ldif
include: file:///etc/ldap/schema/cosine.ldif
include: file:///etc/ldap/schema/inetorgperson.ldif
include: file:///etc/ldap/schema/nis.ldif

dn: cn=openssh-lpk,cn=schema,cn=config
objectClass: olcSchemaConfig
cn: openssh-lpk
olcAttributeTypes: ( 1.3.6.1.4.1.24552.500.1.1.1.13 NAME 'sshPublicKey' EQUALITY octetStringMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 )
olcObjectClasses: ( 1.3.6.1.4.1.24552.500.1.1.2.0 NAME 'ldapPublicKey' SUP top AUXILIARY
  MAY ( sshPublicKey $ uid ) )

dn: olcDatabase=mdb,cn=config
objectClass: olcDatabaseConfig
objectClass: olcMdbConfig
olcDatabase: mdb
olcSuffix: {BASE_DN}
olcRootDN: cn=admin,{BASE_DN}
olcRootPW: {LDAP_PASSWORD}
olcDbDirectory: /data/db
"""
    return _server(image, namespace, name, 389, _SLAPD, {"config.ldif": config, "people.ldif": people})


def person(name: str, uid: int, key: str) -> str:
    """LDIF of a user with a group of the same name and number, and a key for ssh."""
    return f"""
dn: uid={name},{BASE_DN}
objectClass: inetOrgPerson
objectClass: posixAccount
objectClass: ldapPublicKey
uid: {name}
cn: {name}
sn: {name}
uidNumber: {uid}
gidNumber: {uid}
homeDirectory: /home/{name}
loginShell: /bin/bash
sshPublicKey: {key}

dn: cn={name},{BASE_DN}
objectClass: posixGroup
cn: {name}
gidNumber: {uid}
"""


def root_entry() -> str:
    """LDIF of the entry that all others are below."""
    return f"dn: {BASE_DN}\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: example\n"


def _server(
    image: str, namespace: str, name: str, port: int, script: str, files: dict[str, str]
) -> list[dict[str, Any]]:
    labels = {"app": name}
    pod = {
        "containers": [
            {
                "name": "server",
                "image": image,
                "command": ["bash", "-ec", script],
                "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
                "volumeMounts": [
                    {"name": "conf", "mountPath": "/conf"},
                    {"name": "data", "mountPath": "/data"},
                    {"name": "tls", "mountPath": TLS_FOLDER},
                ],
            }
        ],
        "terminationGracePeriodSeconds": 1,
        "volumes": [
            {"name": "conf", "configMap": {"name": name}},
            {"name": "data", "emptyDir": {}},
            {"name": "tls", "emptyDir": {}},
        ],
    }
    meta = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": labels, "ports": [{"port": port}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": meta,
            "spec": {
                "replicas": 1,
                "serviceName": name,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
