{{- define "percolator-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "percolator-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "percolator-operator.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "percolator-operator.selector" -}}
app.kubernetes.io/name: {{ include "percolator-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Those that nothing takes the place of. */}}
{{- define "percolator-operator.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "percolator-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: percolator
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "percolator-operator.labels" -}}
{{- include "percolator-operator.labelsAnd" (list . dict) }}
{{- end }}

{{/* Of a list of the chart and an object's labels: the chart's own come first, then the object's, then those of all objects. */}}
{{- define "percolator-operator.labelsAnd" -}}
{{- $chart := first . }}
{{- $own := include "percolator-operator.ownLabels" $chart | fromYaml }}
{{- merge $own (last . | default dict) ($chart.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{- define "percolator-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "percolator-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "percolator-operator.lease" -}}
{{- default (include "percolator-operator.fullname" .) ((.Values.leaderElection).lease) }}
{{- end }}

{{- define "percolator-operator.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ if or .tag (not .digest) }}:{{ default $.Chart.AppVersion .tag }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* The verbs that the operator uses, and no others. */}}
{{- define "percolator-operator.rules" -}}
- apiGroups: [percolator.dev]
  resources: [percolatorclusters]
  verbs: [get, list, watch]
- apiGroups: [percolator.dev]
  resources: [percolatorclusters/status]
  verbs: [patch]
# To own objects and block their owner's deletion until they are gone.
- apiGroups: [percolator.dev]
  resources: [percolatorclusters/finalizers]
  verbs: [update]
# Who gives an object that is there an owner has to be allowed to delete it, where the API server enforces that
# (OwnerReferencesPermissionEnforcement): objects that a former cluster of the name left behind are taken up.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# Whose the pods of a Deployment are.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Oracles that share a register may change that ConfigMap. Kubernetes lets the operator grant only rights that it has itself,
# here get and patch of ConfigMaps.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# Of the Prometheus operator, where it is there and a cluster asks for it: not watched, since they may not be there.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
# Why pods can't be made stands in events alone.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}
