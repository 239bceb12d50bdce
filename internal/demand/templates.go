package demand

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// revisionAnnotation is where the Deployment controller counts a Deployment's templates.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// template is one ReplicaSet of an owner: one version of its pod template.
type template struct {
	owner string
	name  string
	// revision counts the owner's templates; a rollback gives an old ReplicaSet a new one. 0 where it is not known.
	revision int64
	// created is the ReplicaSet's age or, without the object, that of its newest pod.
	created time.Time
}

func newer(a, b template) int {
	return cmp.Or(cmp.Compare(a.revision, b.revision), a.created.Compare(b.created), strings.Compare(a.name, b.name))
}

// newestTemplates leaves out pods of a template that its owner has replaced, so that a rolling update, whose old and new
// pods wait side by side, does not count twice. Pods without a Deployment all stay.
func newestTemplates(pods []*corev1.Pod, sets []*appsv1.ReplicaSet) (kept []*corev1.Pod, notes []Note) {
	known := map[types.UID]*appsv1.ReplicaSet{}
	for _, rs := range sets {
		known[rs.UID] = rs
	}
	newest := map[string]template{}
	for _, pod := range pods {
		if t, ok := templateOf(pod, known); ok {
			if have, seen := newest[t.owner]; !seen || newer(t, have) > 0 {
				newest[t.owner] = t
			}
		}
	}
	for _, pod := range pods {
		t, ok := templateOf(pod, known)
		if last := newest[t.owner]; ok && t.name != last.name {
			notes = append(notes, Note{Pod: refOf(pod), Reason: NoteSuperseded, Message: fmt.Sprintf(
				"this pod is of ReplicaSet %s; its Deployment has moved on to %s, whose pods count instead", t.name, last.name)})
			continue
		}
		kept = append(kept, pod)
	}
	return kept, notes
}

// templateOf finds a pod's ReplicaSet and the Deployment above it; false for pods that have none.
func templateOf(pod *corev1.Pod, known map[types.UID]*appsv1.ReplicaSet) (template, bool) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return template{}, false
	}
	if rs, ok := known[ref.UID]; ok {
		above := metav1.GetControllerOf(rs)
		if above == nil {
			return template{}, false
		}
		revision, _ := strconv.ParseInt(rs.Annotations[revisionAnnotation], 10, 64)
		return template{owner: pod.Namespace + "/" + above.Name, name: rs.Name, revision: revision,
			created: rs.CreationTimestamp.Time}, true
	}
	// Without the ReplicaSet the Deployment's name is read from it, as the Deployment controller builds it.
	hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	deployment, ok := strings.CutSuffix(ref.Name, "-"+hash)
	if hash == "" || !ok {
		return template{}, false
	}
	return template{owner: pod.Namespace + "/" + deployment, name: ref.Name, created: pod.CreationTimestamp.Time}, true
}
