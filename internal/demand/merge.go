package demand

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// merger adds asks, oldest first, into one workload.
type merger struct {
	workload Workload
	// sourceOf and argsOf are the asks that settled those two; needsOf has the ask that set each need.
	sourceOf, argsOf *ask
	needs            needs
	needsOf          map[string]string
	// poolNeeds are what the pools' entries say, for what no pod declares.
	poolNeeds needs
	min       int
	// most is the largest maxReplicas of the pools' entries, which bounds the gateway's wish; 0 means no bound.
	most    int
	bounded bool
	added   []ask
}

// conflict says in words why a cannot be served beside what was added, naming the winner; empty where it can.
func (m *merger) conflict(a ask) string {
	w := &m.workload
	if a.source != "" && !a.weak && a.source != w.Source {
		return fmt.Sprintf("%s, which is older, serves %s from %s; this one loads %s: give one of them another served name",
			m.sourceOf.label(), w.Key, w.Source, a.source)
	}
	if a.statesArgs() && m.argsOf != nil && !slices.Equal(a.args, w.Args) {
		return fmt.Sprintf("%s, which is older, serves %s with the engine arguments [%s]; this one has [%s]: make them equal or give one another served name",
			m.argsOf.label(), w.Key, strings.Join(w.Args, " "), strings.Join(a.args, " "))
	}
	if a.pod == nil {
		return ""
	}
	if name, have, want := m.needs.conflict(a.needs); name != "" {
		return fmt.Sprintf("%s, which is older, asks for %s with %s %s; this one with %s: make them equal or give one another served name",
			m.needsOf[name], w.Key, name, have, want)
	}
	return ""
}

// statesArgs: a pod with a readable engine states its arguments even when it has none, a pool's entry only when it has
// some.
func (a ask) statesArgs() bool {
	if a.pod != nil {
		return a.args != nil
	}
	return len(a.args) > 0
}

func (m *merger) add(a ask) {
	w := &m.workload
	m.added = append(m.added, a)
	if a.statesArgs() && m.argsOf == nil {
		m.argsOf = &a
		w.Args = slices.Clone(a.args)
	}
	if a.pod == nil {
		m.addPool(a)
		return
	}
	m.needs.fill(a.needs)
	for _, f := range a.needs.fields() {
		if f.value != "" && m.needsOf[f.name] == "" {
			if m.needsOf == nil {
				m.needsOf = map[string]string{}
			}
			m.needsOf[f.name] = a.label()
		}
	}
	if w.MaxPrice == nil || (a.maxPrice != nil && a.maxPrice.Less(*w.MaxPrice)) {
		w.MaxPrice = a.maxPrice
	}
	if len(w.Pods) == 0 {
		w.Since = a.pod.Created
		w.Priority = a.priority
	}
	w.Priority = max(w.Priority, a.priority)
	w.Pods = append(w.Pods, *a.pod)
	if !slices.Contains(w.Namespaces, a.pod.Namespace) {
		w.Namespaces = append(w.Namespaces, a.pod.Namespace)
	}
}

func (m *merger) addPool(a ask) {
	w := &m.workload
	w.Pools = append(w.Pools, a.pool.Name)
	m.poolNeeds.fill(a.needs)
	w.AlwaysActive = w.AlwaysActive || a.model.AlwaysActive
	m.min = max(m.min, int(a.model.MinReplicas))
	if a.model.AlwaysActive {
		m.min = max(m.min, 1)
	}
	if most := a.model.MaxReplicas; most != nil {
		m.most = max(m.most, int(*most))
		m.bounded = true
	}
}

// finish completes the workload once every ask is in.
func (m *merger) finish(wish int) Workload {
	w := m.workload
	m.needs.fill(m.poolNeeds)
	w.GPUCount, w.VRAMGB, w.GPUTypes = m.needs.gpuCount, m.needs.vramGB, m.needs.gpuTypes
	w.Provider, w.CapacityType, w.Pool = m.needs.provider, m.needs.capacity, m.needs.pool
	if m.bounded {
		wish = min(wish, m.most)
	}
	w.MinReplicas, w.Wish = m.min, max(wish, 0)
	w.Replicas = max(len(w.Pods), wish, m.min)
	slices.Sort(w.Namespaces)
	slices.Sort(w.Pools)
	if len(w.Args) == 0 {
		w.Args = nil
	}
	return w
}

// notes are what the owners of the pods that were added should know.
func (m *merger) notes(pools []*v1alpha1.GPUNodePool) []Note {
	var notes []Note
	for _, a := range m.added {
		if a.pod == nil {
			continue
		}
		if text := imageNote(a.image, pools); text != "" {
			notes = append(notes, Note{Pod: *a.pod, Reason: NoteImageIgnored, Message: text})
		}
		if len(a.aliases) > 0 {
			notes = append(notes, Note{Pod: *a.pod, Reason: NoteAliasesIgnored, Message: fmt.Sprintf(
				"requests reach this model as %s only; the further names %s are not served", a.key, strings.Join(a.aliases, ", "))})
		}
	}
	return notes
}

// defaultImage is the API's default, for pools that were never defaulted (offline plans).
const defaultImage = "vllm/vllm-openai:latest"

func imageNote(image string, pools []*v1alpha1.GPUNodePool) string {
	var theirs []string
	for _, p := range pools {
		img := p.Spec.Bootstrap.Image
		if img == "" {
			img = defaultImage
		}
		if img == image {
			return ""
		}
		if !slices.Contains(theirs, img) {
			theirs = append(theirs, img)
		}
	}
	if image == "" || len(theirs) == 0 {
		return ""
	}
	return fmt.Sprintf("the pod's image %s is not run: gpuscale serves its model with the pool's image %s", image,
		strings.Join(theirs, " or "))
}

// formHash changes whenever something changes that could cure a workload's failure, in the workload or in a pool that
// may serve it.
func (m *merger) formHash(pools []*v1alpha1.GPUNodePool) string {
	w := m.workload
	type poolForm struct {
		Name         string
		Requirements v1alpha1.Requirements
		Bootstrap    v1alpha1.Bootstrap
	}
	form := struct {
		Source string
		Args   []string
		Needs  map[string]string
		Pools  []poolForm
	}{Source: w.Source, Args: w.Args, Needs: map[string]string{}}
	for _, f := range m.needs.fields() {
		form.Needs[f.name] = f.value
	}
	for _, p := range pools {
		form.Pools = append(form.Pools, poolForm{p.Name, p.Spec.Requirements, p.Spec.Bootstrap})
	}
	// Nothing in the form can fail to marshal: strings, numbers and lists of them.
	text, _ := json.Marshal(form)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}
