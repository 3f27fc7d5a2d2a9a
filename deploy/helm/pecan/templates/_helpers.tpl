{{- define "pecan.name" -}}
{{- if contains "pecan" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-pecan" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "pecan.selector" -}}
app.kubernetes.io/name: pecan
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pecan.labels" -}}
{{ include "pecan.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The address of the pod itself. Kubernetes replaces $(POD_IP). */ -}}
{{- define "pecan.podHost" -}}
{{- if eq .Values.ipFamily "IPv6" }}[$(POD_IP)]{{ else }}$(POD_IP){{ end }}
{{- end }}

{{- define "pecan.podEnv" -}}
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- end }}

{{- define "pecan.metricsAnnotations" -}}
{{- if .root.Values.metricsAnnotations }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- with .more }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pecan.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- /* The tables that the dispatcher reads, by file name. */ -}}
{{- define "pecan.tables" -}}
{{- with .Values.dispatcher.prices }}
prices.yaml: {{ toYaml . | quote }}
{{- end }}
{{- with .Values.dispatcher.tenants }}
tenants.yaml: {{ toYaml . | quote }}
{{- end }}
{{- end }}

{{- /* The cache's volume source. */ -}}
{{- define "pecan.cacheSource" -}}
{{- $c := .Values.cache }}
{{- if $c.existingClaim }}
persistentVolumeClaim: { claimName: {{ $c.existingClaim | quote }} }
{{- else if $c.hostPath }}
# The directory is inside of the mounted volume. If it is not mounted, the pod does not start.
hostPath: { path: {{ $c.hostPath | quote }}, type: Directory }
{{- else if $c.size }}
persistentVolumeClaim: { claimName: {{ include "pecan.name" . }}-cache }
{{- else }}
{{- fail "cache.enabled needs cache.existingClaim, cache.hostPath or cache.size" }}
{{- end }}
{{- end }}
