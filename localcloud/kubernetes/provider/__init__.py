"""Stands in for Pulumi's `kubernetes` resource plugin where that cannot be had; applies objects to a real API server.

It does not: render YAML to a directory, apply on the client's side, serve *List and *Patch kinds, `yaml`/`kustomize`
and `helm.sh/v4` components, `generateName`, kubeconfigs with impersonation or a proxy, or functions (invokes). Each of
them is refused with an error that names it and says what to use instead. An Ingress is waited for until it has an
address (not until its Services have pods), and custom resources only by the annotation pulumi.com/waitFor.

It does more than the plugin in three places: a chart directory is compared by content and not by its version alone;
a create that was killed is taken up again by the next run; a Helm release that a kill left in a pending state is
repaired.

The modules, from the outside in: `server` (the gRPC protocol), `config` (the provider's own configuration), `objects`
(one Kubernetes object: diff, create, read, update, delete) with `check` and `diff`, `waiting` with `rules`, `waitfor`
and `diagnosis`, `helm` (releases) with `helm_inputs`, `helm_records`, `helm_run` and `helm_wait`, and below them
`cluster`, `client`, `discovery`, `auth` and `wire`.
"""
