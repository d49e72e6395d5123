{{/* Names. */}}
{{- define "moa.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "moa.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "moa.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "moa.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "moa.replicasName" -}}{{ include "moa.fullname" . }}-replicas{{- end -}}
{{- define "moa.tlsSecret" -}}{{ .Values.tls.secretName | default (printf "%s-tls" (include "moa.fullname" .)) }}{{- end -}}
{{- define "moa.keysSecret" -}}{{ .Values.keys.secretName | default (printf "%s-keys" (include "moa.fullname" .)) }}{{- end -}}
{{- define "moa.cacheClaim" -}}{{ .Values.cache.existingClaim | default (printf "%s-cache" (include "moa.fullname" .)) }}{{- end -}}
{{- define "moa.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end -}}

{{- define "moa.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "moa.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which replicas are selected never change; the others say what runs. */}}
{{- define "moa.selector" -}}
app.kubernetes.io/name: {{ include "moa.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "moa.labels" -}}
{{ include "moa.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* A replica may take this long to end: to vanish from Services, its answers' grace, and its last words. */}}
{{- define "moa.endSeconds" -}}
{{- add .Values.drain.preStopSeconds .Values.drain.graceSeconds 15 -}}
{{- end -}}

{{/* What the schema cannot say. */}}
{{- define "moa.check" -}}
{{- if and .Values.autoscaling.enabled (not (kindIs "invalid" .Values.replicas)) -}}
{{- fail "replicas and autoscaling exclude each other: leave replicas out (replicas: null), or set autoscaling.enabled=false." -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas (%d) is above autoscaling.maxReplicas (%d)." (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.queueSeconds) (not .Values.autoscaling.kvShare) -}}
{{- fail "autoscaling has nothing to look at: set autoscaling.queueSeconds or autoscaling.kvShare." -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- fail "gateway.enabled needs a Gateway: gateway.parentRefs=[{name: GATEWAY}]." -}}
{{- end -}}
{{- if and .Values.gateway.enabled .Values.tls.enabled (not .Values.gateway.backendTls.hostname) -}}
{{- fail "The gateway must know which name the replicas' certificate is for: set gateway.backendTls.hostname, or tls.enabled=false where the network protects by itself." -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecretName (not .Values.tls.enabled) -}}
{{- fail "Clients show certificates over TLS only: set tls.enabled=true, or leave tls.clientCaSecretName out." -}}
{{- end -}}
{{- end -}}

{{/* A value as the environment has it: whole numbers without an exponent. */}}
{{- define "moa.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . | toString }}{{- else -}}{{ toString . }}{{- end -}}
{{- end -}}
