{{- define "gpuscale.name" -}}
{{- if contains "gpuscale" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-gpuscale{{ end }}
{{- end }}

{{- define "gpuscale.selector" -}}
app.kubernetes.io/name: gpuscale
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpuscale.labels" -}}
{{ include "gpuscale.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpuscale.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "gpuscale.name" .) }}
{{- else }}{{ required "serviceAccount.create is false: serviceAccount.name has to name one that exists" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "gpuscale.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What the "restricted" Pod Security Standard asks for, and no writing outside of mounted volumes. */}}
{{- define "gpuscale.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "gpuscale.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The environment variables of each provider. */}}
{{- define "gpuscale.providerEnv" -}}
aws: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_SUBNET_ID, AWS_SECURITY_GROUP_ID]
azure: [AZURE_SUBSCRIPTION_ID, AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET]
gcp: [GCP_PROJECT_ID, GCP_SERVICE_ACCOUNT_JSON, GCP_ZONES]
runpod: [RUNPOD_API_KEY]
tensordock: [TENSORDOCK_API_TOKEN]
vastai: [VASTAI_API_KEY]
verda: [VERDA_CLIENT_ID, VERDA_CLIENT_SECRET]
{{- end }}

{{- define "gpuscale.usesPostgres" -}}
{{- if or .Values.postgres.existingSecret .Values.postgres.url }}yes{{ end }}
{{- end }}

{{- /* A URL by environment: from a Secret, or as it is. Takes the variable's name and the values. */}}
{{- define "gpuscale.urlEnv" -}}
{{- if .from.existingSecret }}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .from.existingSecret | quote }}, key: {{ .from.key | quote }}}}
{{- else if .from.url }}
- {name: {{ .name }}, value: {{ .from.url | quote }}}
{{- end }}
{{- end }}
