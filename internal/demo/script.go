package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// Names that the order of the story refers to.
const (
	nPending   = "pod pending"
	nReserved  = "reservation"
	nIntent    = "purchase recorded"
	nCreated   = "instance created"
	nRunning   = "instance running"
	nConnected = "agent connected"
	nLoaded    = "model loaded"
	nReady     = "claim Ready"
	nServed    = "pod served"
	nStreamed  = "completion streamed"
	nPodGone   = "pod deleted"
	nIdle      = "idle"
	nCooldown  = "cooldown over"
	nDrained   = "drained"
	nDestroyed = "destroyed"
	nGone      = "confirmed gone"
	nReleased  = "reservation released"
)

// Buying is what follows a pod that nothing can run.
func Buying() []Expectation {
	return []Expectation{
		{Name: nPending, Source: Kubernetes, Check: first(firstPending)},
		{Name: "offers considered", Source: Kubernetes, Check: event("GPUNodeClaim", v1alpha1.ReasonPlanned)},
		{Name: nReserved, Source: Kubernetes, Check: first(firstReserved), After: []string{nPending}},
		{Name: nIntent, Source: Kubernetes, Check: intent, After: []string{nReserved}},
		{Name: nCreated, Source: Kubernetes, Check: first(prefixCondition + v1alpha1.ConditionInstanceCreated),
			After: []string{nIntent}},
		{Name: "listed by the provider", Source: Provider, Check: first(firstRented)},
		{Name: "in the market's books", Source: Books, Check: booked, After: []string{nIntent}},
	}
}

// Booting is how the instance comes to serve.
func Booting() []Expectation {
	return []Expectation{
		{Name: nRunning, Source: Kubernetes, Check: step("InstanceRunning", "reached at %s"), After: []string{nCreated}},
		{Name: nConnected, Source: Kubernetes, Check: step("AgentConnected", "%s"), After: []string{nRunning}},
		{Name: "GPUs found", Source: Kubernetes, Check: step("AgentGPUsFound", "%s")},
		{Name: "model loading", Source: Kubernetes, Check: step("AgentLoading", "%s")},
		{Name: nLoaded, Source: Kubernetes, Check: first(prefixCondition + v1alpha1.ConditionModelLoaded),
			After: []string{nConnected}},
		{Name: nReady, Source: Kubernetes, Check: ready, After: []string{nLoaded}},
		{Name: nServed, Source: Kubernetes, Check: first(firstServed), After: []string{nReady}},
		{Name: "rate paid", Source: Provider, Check: first(firstRate)},
		{Name: "model at the gateway", Source: Gateway, Check: first(firstModel)},
	}
}

// Answering is a completion, streamed by the engine on the instance.
func Answering() []Expectation {
	return []Expectation{
		{Name: nStreamed, Source: Gateway, Check: streamed, After: []string{nServed}},
		{Name: "by the instance's engine", Source: Kubernetes, Check: byEngine},
	}
}

// GivingBack is what follows the end of the demand.
func GivingBack() []Expectation {
	return []Expectation{
		{Name: nPodGone, Source: Kubernetes, Check: first(firstPodGone), After: []string{nServed}},
		{Name: nIdle, Source: Kubernetes, Check: idle, After: []string{nPodGone}},
		{Name: nCooldown, Source: Kubernetes, Check: ending, After: []string{nStreamed, nPodGone}, Gap: cooldown},
		{Name: nDrained, Source: Kubernetes, Check: first(prefixCondition + v1alpha1.ConditionDrained),
			After: []string{nCooldown}},
		{Name: nDestroyed, Source: Kubernetes, Check: step("DestroyAsked", "the provider was asked to end the rental%s"),
			After: []string{nDrained}},
		{Name: "off the provider's list", Source: Provider, Check: unlisted, After: []string{nDrained}},
		{Name: nGone, Source: Kubernetes, Check: first(prefixCondition + v1alpha1.ConditionInstanceGone),
			After: []string{nDestroyed}},
		{Name: nReleased, Source: Kubernetes, Check: first(firstReleased), After: []string{nGone}},
		{Name: "claim gone", Source: Kubernetes, Check: first(firstClaimGone), After: []string{nReleased}},
		{Name: "$0/h", Source: Books, Check: free},
		{Name: "spent", Source: Books, Check: spent},
	}
}

type check = func(w *World) (Sighting, bool)

func first(name string) check {
	return func(w *World) (Sighting, bool) { return w.First(name) }
}

func event(kind, reason string) check {
	return func(w *World) (Sighting, bool) {
		s, ok := w.Events[EventKey{kind, reason}]
		return s, ok
	}
}

// step is a milestone of the claim, told with its message.
func step(name, format string) check {
	return func(w *World) (Sighting, bool) {
		s, ok := w.First(prefixStep + name)
		s.Text = fmt.Sprintf(format, s.Text)
		return s, ok
	}
}

func intent(w *World) (Sighting, bool) {
	s, ok := w.First(firstIntent)
	s.Text = fmt.Sprintf("owner tag %s, written before the provider is asked", s.Text)
	return s, ok
}

// booked is the instance in the market's own books, from the moment at which the market rented it out.
func booked(w *World) (Sighting, bool) {
	if w.Claim == nil {
		return Sighting{}, false
	}
	for _, in := range w.Account.Instances {
		if in.ID == w.Claim.Status.InstanceID {
			return Sighting{At: in.CreatedAt, Exact: true, Text: fmt.Sprintf("%d rented out, at $%.4f/h while it runs",
				w.Account.Rented, in.GPURate+in.StorageRate)}, true
		}
	}
	return Sighting{}, false
}

func ready(w *World) (Sighting, bool) {
	s, ok := w.First(prefixPhase + string(v1alpha1.PhaseReady))
	if !ok {
		return s, false
	}
	c, ok := w.First(prefixCondition + v1alpha1.ConditionReady)
	s.Text = c.Text
	return s, ok
}

// Model is what the sample asks for, as it is served.
const Model = "Qwen/Qwen2.5-1.5B-Instruct"

func streamed(w *World) (Sighting, bool) {
	a := w.Answer
	if !a.Whole || a.Chunks < 2 || a.Model != Model || a.Finish == "" {
		return Sighting{}, false
	}
	return Sighting{At: a.DoneAt, Exact: true, Text: fmt.Sprintf("%d pieces from %s in %.2fs, the first after %.2fs",
		a.Chunks, a.Model, a.DoneAt.Sub(a.AskedAt).Seconds(), a.FirstAt.Sub(a.AskedAt).Seconds())}, true
}

// byEngine holds when the answer is the engine's, whose text names its model, and the agent on the claim's instance has
// counted the request.
func byEngine(w *World) (Sighting, bool) {
	s, ok := w.First(firstRequest)
	if !ok || w.Claim == nil || !strings.Contains(w.Answer.Text, Model) {
		return s, false
	}
	s.Text = fmt.Sprintf("the agent at %s, claim %s, has counted the request", w.Claim.Status.Endpoint, w.Claim.Name)
	return s, true
}

func idle(w *World) (Sighting, bool) {
	s, ok := w.First(prefixCondition + v1alpha1.ConditionIdle)
	s.Text = fmt.Sprintf("%s (cooldown %s)", s.Text, v1alpha1.FormatDuration(cooldown(w)))
	return s, ok
}

func ending(w *World) (Sighting, bool) {
	s, ok := w.First(firstEnding)
	if !ok || s.Text != v1alpha1.ReasonCooldownOver && s.Text != v1alpha1.ReasonDemandEnded {
		return s, false
	}
	s.Text = fmt.Sprintf("nobody wanted it for %s: the claim ends (%s)", v1alpha1.FormatDuration(cooldown(w)), s.Text)
	return s, true
}

// cooldown is the pool's.
func cooldown(w *World) time.Duration {
	const byDefault = 5 * time.Minute
	if w.Pool == nil {
		return byDefault
	}
	return w.Pool.Spec.Scaling.CooldownPeriod.Or(byDefault)
}

func unlisted(w *World) (Sighting, bool) {
	asked, ok := w.First(prefixStep + "DestroyAsked")
	if _, still := w.mine(); !ok || still || !w.RentedAt.After(asked.At) {
		return Sighting{}, false
	}
	return Sighting{At: w.RentedAt, Text: fmt.Sprintf("%d instances in the account", len(w.Rented))}, true
}

func free(w *World) (Sighting, bool) {
	a := w.Account
	if _, gone := w.First(firstClaimGone); !gone || a.Rented == 0 || a.Now.Live != 0 || a.Now.PerHour != 0 ||
		a.Now.CommittedPerHour != 0 {
		return Sighting{}, false
	}
	return Sighting{At: a.At, Text: "nothing is rented"}, true
}

func spent(w *World) (Sighting, bool) {
	a := w.Account
	if a.Spent <= 0 || a.Now.Live != 0 || w.LedgerCost == "" {
		return Sighting{}, false
	}
	return Sighting{At: a.At, Text: fmt.Sprintf("$%.6f for %d rented, by the market's own books; gpuscale's ledger says $%s",
		a.Spent, a.Rented, w.LedgerCost)}, true
}
