{{/* Names */}}
{{- define "slurm.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "slurm.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "slurm.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "slurm.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Labels of the resources themselves. Pods get none of these: a new chart version must not replace workers. */}}
{{- define "slurm.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/part-of: slurm
app.kubernetes.io/managed-by: {{ .Release.Service }}
slinky.slurm.net/cluster: {{ include "slurm.fullname" . }}
{{- end }}

{{/* metadata of a resource: dict root, name */}}
{{- define "slurm.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "slurm.labels" .root | nindent 2 }}
{{- end }}

{{/* Image reference from a map with repository, tag, digest: dict root, image */}}
{{- define "slurm.image" -}}
{{- $image := .image -}}
{{- $repository := required "an image needs a repository" $image.repository -}}
{{- $first := first (splitList "/" $repository) -}}
{{- $named := and (contains "/" $repository) (or (contains "." $first) (contains ":" $first) (eq "localhost" $first)) -}}
{{- if and .root.Values.imageRegistry (not $named) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .root.Values.imageRegistry) $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .root.Chart.AppVersion | toString) -}}
{{- end -}}
{{- end }}

{{/* A container: image map to reference, empty fields left out: dict root, container */}}
{{- define "slurm.container" -}}
{{- $result := dict "imagePullPolicy" .root.Values.imagePullPolicy -}}
{{- range $field, $value := .container -}}
{{- if eq $field "image" -}}
{{- $_ := set $result "image" (include "slurm.image" (dict "root" $.root "image" $value)) -}}
{{- else if not (empty $value) -}}
{{- $_ := set $result $field $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $result -}}
{{- end }}

{{/* A pod template from metadata and podSpec: dict root, metadata, podSpec, volumes, hostname */}}
{{- define "slurm.template" -}}
{{- $spec := dict -}}
{{- range $field, $value := .podSpec -}}
{{- if not (empty $value) -}}{{- $_ := set $spec $field $value -}}{{- end -}}
{{- end -}}
{{- with concat ($spec.volumes | default list) (.volumes | default list) -}}{{- $_ := set $spec "volumes" . -}}{{- end -}}
{{- with concat ($spec.imagePullSecrets | default list) (.root.Values.imagePullSecrets | default list) -}}
{{- $_ := set $spec "imagePullSecrets" . -}}
{{- end -}}
{{- with .hostname -}}{{- $_ := set $spec "hostname" . -}}{{- end -}}
{{- $result := dict -}}
{{- with .metadata -}}{{- $_ := set $result "metadata" . -}}{{- end -}}
{{- with $spec -}}{{- $_ := set $result "spec" . -}}{{- end -}}
{{- with $result -}}
template:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{/* A Service's overlay, if there is any: service map */}}
{{- define "slurm.service" -}}
{{- $result := dict -}}
{{- range $field, $value := . -}}
{{- if not (empty $value) -}}{{- $_ := set $result $field $value -}}{{- end -}}
{{- end -}}
{{- with $result -}}
service:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{/* Map to `Key=Value Key=Value`, lists joined by commas: dict map, separator */}}
{{- define "slurm.settings" -}}
{{- $parts := list -}}
{{- range $key, $value := .map -}}
{{- $parts = append $parts (printf "%s=%s" $key (kindIs "slice" $value | ternary (join "," $value) (toString $value))) -}}
{{- end -}}
{{- join .separator $parts -}}
{{- end }}

{{/* Accounts: volumes and mounts of login pods and workers */}}
{{- define "slurm.users.volumes" -}}
{{- if .Values.users }}
- name: users
  configMap:
    name: {{ include "slurm.fullname" . }}-users
    items:
      - {key: passwd, path: passwd, mode: 0644}
      - {key: group, path: group, mode: 0644}
      - {key: shadow, path: shadow, mode: 0600}
{{- end }}
{{- with .Values.home }}
- name: home
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "slurm.users.mounts" -}}
{{- if .Values.users }}
- {name: users, mountPath: /var/lib/extrausers, readOnly: true}
{{- end }}
{{- with .Values.home }}
- {name: home, mountPath: /home}
{{- end }}
{{- end }}

{{/* A NodeSet or login set with its defaults: dict defaults, own -> YAML */}}
{{- define "slurm.merged" -}}
{{- mergeOverwrite (dict) (deepCopy (.defaults | default dict)) (deepCopy (.own | default dict)) | toYaml -}}
{{- end }}

{{/* A PodDisruptionBudget for pods of the operator: dict root, name, app, instance, budget */}}
{{- define "slurm.pdb" }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "slurm.metadata" (dict "root" .root "name" .name) | nindent 2 }}
spec:
  {{- if hasKey .budget "minAvailable" }}
  minAvailable: {{ .budget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ .budget.maxUnavailable | default 1 }}
  {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .app }}
      app.kubernetes.io/instance: {{ .instance }}
{{- end }}

{{/* Reference to the Secret key with sssd.conf; empty when there is none */}}
{{- define "slurm.sssdConfRef" -}}
{{- if .Values.sssd.enabled -}}
{{- toYaml (.Values.sssd.secretRef | default (dict "name" (printf "%s-sssd" (include "slurm.fullname" .)) "key" "sssd.conf")) -}}
{{- end -}}
{{- end }}
