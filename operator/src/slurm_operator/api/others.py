"""LoginSet, RestApi, Accounting and Token."""

from __future__ import annotations

from typing import Annotated

from slurm_operator.api.common import (
    Base,
    Conditions,
    Container,
    External,
    JsonObject,
    KeySelector,
    LocalRef,
    PodTemplate,
    Service,
    doc,
    rule,
)
from slurm_operator.api.nodeset import IMMUTABLE_CONTROLLER

ControllerRef = Annotated[
    LocalRef, doc("The Controller this belongs to. Immutable.", x_kubernetes_validations=IMMUTABLE_CONTROLLER)
]


class LoginSetSpec(Base, frozen=True):
    controller_ref: ControllerRef
    replicas: Annotated[int, doc("Number of login pods.", minimum=0, format="int32", default=1)] = 1
    login: Container = {}
    initconf: Container = {}
    template: Annotated[PodTemplate, doc("The login pods.")] = PodTemplate()
    root_ssh_authorized_keys: Annotated[str, doc("authorized_keys of root.")] = ""
    extra_sshd_config: Annotated[str, doc("Lines added to sshd_config.")] = ""
    sssd_conf_ref: Annotated[KeySelector | None, doc("Secret key with sssd.conf, for users from a directory.")] = None
    strategy: Annotated[JsonObject, doc("DeploymentStrategy of the login pods.")] = {}
    service: Annotated[Service, doc("The Service of sshd, port 22.")] = Service()


class LoginSetStatus(Base, frozen=True):
    replicas: Annotated[int, doc("Login pods that exist.", format="int32")] = 0
    conditions: Conditions = []
    selector: Annotated[str, doc("Label selector of the login pods, for autoscalers.")] = ""


class RestApiSpec(Base, frozen=True):
    controller_ref: ControllerRef
    replicas: Annotated[int, doc("Number of slurmrestd pods.", minimum=0, format="int32", default=1)] = 1
    slurmrestd: Container = {}
    template: Annotated[PodTemplate, doc("The slurmrestd pods.")] = PodTemplate()
    service: Annotated[Service, doc("The Service of slurmrestd, port 6820.")] = Service()


class RestApiStatus(Base, frozen=True):
    conditions: Conditions = []


class Storage(Base, frozen=True):
    host: Annotated[str, doc("Host of the MySQL or MariaDB server.", maxLength=253)] = ""
    port: Annotated[int, doc("Its port.", minimum=1, maximum=65535)] = 3306
    database: Annotated[str, doc("Name of the database.")] = "slurm_acct_db"
    username: Annotated[str, doc("User of the database.")] = ""
    password_key_ref: Annotated[KeySelector | None, doc("Secret key with the password.")] = None


class AccountingSpec(Base, frozen=True):
    slurm_key_ref: Annotated[KeySelector | None, doc("Key of auth/slurm; the Controller's.")] = None
    jwt_key_ref: Annotated[KeySelector | None, doc("HS256 key of auth/jwt; the Controller's.")] = None
    jwt_hs256_key_ref: Annotated[KeySelector | None, doc("Old name of jwtKeyRef.")] = None
    jwks_key_ref: Annotated[KeySelector | None, doc("ConfigMap key with a JWKS.")] = None
    external: Annotated[bool, doc("slurmdbd runs outside of Kubernetes; see externalConfig.")] = False
    external_config: Annotated[External, doc("Where the external slurmdbd is.")] = External()
    slurmdbd: Container = {}
    template: Annotated[PodTemplate, doc("The slurmdbd pod.")] = PodTemplate()
    storage_config: Annotated[Storage, doc("The database.")] = Storage()
    extra_conf: Annotated[str, doc("Lines added to slurmdbd.conf.")] = ""
    service: Annotated[Service, doc("The Service of slurmdbd, port 6819.")] = Service()


class AccountingStatus(Base, frozen=True):
    conditions: Conditions = []


class TokenSpec(Base, frozen=True):
    jwt_key_ref: Annotated[KeySelector | None, doc("HS256 key that signs the token.")] = None
    jwt_hs256_key_ref: Annotated[KeySelector | None, doc("Old name of jwtKeyRef.")] = None
    username: Annotated[str, doc("Slurm user that the token speaks for.", maxLength=63)] = "nobody"
    lifetime: Annotated[str, doc("How long a token is valid: `15m`, `1h30m`.", maxLength=32)] = "15m"
    refresh: Annotated[bool, doc("Write a new token at 80 % of the lifetime.")] = True
    secret_ref: Annotated[
        KeySelector | None, doc("Secret to write; <name>-jwt-<username>, key SLURM_JWT when not given.")
    ] = None


class TokenStatus(Base, frozen=True):
    issued_at: Annotated[str | None, doc("When the token was signed.", format="date-time")] = None
    conditions: Conditions = []


ACCOUNTING_RULES = [
    rule(
        "(has(self.external) && self.external) ? has(self.externalConfig) : true",
        "externalConfig must be set when external is true",
    ),
]
TOKEN_RULES = [rule("has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)", "jwtKeyRef or jwtHs256KeyRef must be set")]
