{{/* The environment of a server: what the chart decides, then the operator's settings. */}}
{{- define "moa.environment" -}}
- name: MOA_SERVER_MODEL
  value: {{ .Values.model | quote }}
- name: MOA_SERVER_HOST
  value: 0.0.0.0
- name: MOA_SERVER_PORT
  value: "50051"
- name: MOA_SERVER_METRICS_HOST
  value: 0.0.0.0
- name: MOA_SERVER_METRICS_PORT
  value: "9464"
- name: MOA_SERVER_GRACE_SECONDS
  value: {{ include "moa.text" .Values.drain.graceSeconds | quote }}
{{- if .Values.tls.enabled }}
- name: MOA_SERVER_TLS_CERT
  value: /etc/moa/tls/tls.crt
- name: MOA_SERVER_TLS_KEY
  value: /etc/moa/tls/tls.key
{{- else }}
- name: MOA_SERVER_INSECURE
  value: "true"
{{- end }}
{{- if .Values.tls.clientCaSecretName }}
- name: MOA_SERVER_TLS_CLIENT_CA
  value: /etc/moa/client-ca/ca.crt
{{- end }}
{{- if .Values.keys.enabled }}
- name: MOA_SERVER_KEYS_FILE
  value: /etc/moa/keys/keys.toml
{{- end }}
{{- if .Values.directAddresses.enabled }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: MOA_SERVER_ADVERTISE
  value: $(POD_IP):50051
- name: MOA_SERVER_PEERS
  value: dns:{{ include "moa.replicasName" . }}.{{ .Release.Namespace }}.svc:50051
{{- end }}
{{- if and (dig "limits" "cpu" "" .Values.resources) (not (hasKey .Values.settings "threads")) }}
- name: MOA_SERVER_THREADS # a process sees all cores of the node
  valueFrom:
    resourceFieldRef:
      resource: limits.cpu
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: MOA_SERVER_{{ upper $name }}
  value: {{ include "moa.text" $value | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
