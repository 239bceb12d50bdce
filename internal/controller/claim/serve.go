package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/workerclient"
)

// connect waits for the agent's first answer and mirrors its account of itself. After that, silence is a condition and
// no reason to end anything: unknown is not idle.
func (v *visit) connect(ctx context.Context) (next, error) {
	callCtx, cancel := context.WithTimeout(ctx, v.Timing.AgentTimeout)
	defer cancel()
	st, err := v.Workers.Status(callCtx, v.claim.Status.Endpoint, string(v.claim.UID))
	if err != nil {
		return v.silent(ctx, err), nil
	}
	v.agent = &st
	v.contacted()
	v.leaving(st.Lease)
	v.noticed(st.Notice)
	v.set(v1alpha1.ConditionAgentConnected, metav1.ConditionTrue, v1alpha1.ReasonAgentConnected, gpusFound(st))
	v.reach("AgentConnected", gpusFound(st))
	if st.LastRequest != nil { // in whole seconds, as it is stored: else each look would write it again
		v.claim.Status.LastRequestAt = ptr.To(metav1.NewTime(*st.LastRequest).Rfc3339Copy())
	}
	if st.Failure != nil {
		v.fail(st.Failure.Step, reasonOf(st.Failure.Exit), culpritOf(st.Failure.Exit), st.Failure.Exit+": "+st.Failure.Message)
	}
	return proceed(), nil
}

func (v *visit) silent(ctx context.Context, err error) next {
	wrong := &workerclient.IdentityError{}
	msg := err.Error()
	switch {
	case v.is(v1alpha1.ConditionModelLoaded) || v.is(v1alpha1.ConditionEndpointPublished):
		v.set(v1alpha1.ConditionAgentConnected, metav1.ConditionFalse, v1alpha1.ReasonAgentUnreachable, msg)
		v.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAgentUnreachable, "the agent does not answer; the instance is kept")
		return waitFor(v.Timing.ReadyPoll)
	case v.late(ctx):
		v.set(v1alpha1.ConditionAgentConnected, metav1.ConditionFalse, v1alpha1.ReasonAgentUnreachable, msg)
		v.fail("AgentConnected", v1alpha1.ReasonAgentUnreachable, v1alpha1.CulpritOffer, "no answer within bootstrapTimeout: "+msg)
		return proceed()
	case errors.As(err, &wrong):
		msg = "someone else answers at the instance's address, or the certificates do not match: " + msg
	}
	v.set(v1alpha1.ConditionAgentConnected, metav1.ConditionFalse, v1alpha1.ReasonWaitingForAgent, msg)
	return v.pollBoot()
}

func gpusFound(st agentapi.Status) string {
	if len(st.GPUs) == 0 {
		return "agent " + st.Version
	}
	return fmt.Sprintf("agent %s, %d×%s, driver %s", st.Version, len(st.GPUs), st.GPUs[0].Name, st.Driver)
}

// load converges the agent's models on the claim's placements and waits until all of them serve.
func (v *visit) load(ctx context.Context) (next, error) {
	if v.agent == nil {
		return v.pollBoot(), nil
	}
	if v.agent.DesiredGeneration != v.claim.Generation {
		if err := v.putModels(ctx); err != nil {
			if v.is(v1alpha1.ConditionModelLoaded) {
				v.log(ctx).Info("placements not given to the agent yet", "error", err.Error())
				return v.pollBoot(), nil // what it serves it goes on serving
			}
			v.set(v1alpha1.ConditionModelLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoading, "giving the agent its models: "+err.Error())
			return v.loadOrLate(ctx)
		}
		if v.is(v1alpha1.ConditionModelLoaded) {
			return v.pollBoot(), nil // its answer was the one before; those that serve go on
		}
		v.agent.Models = nil
	}
	v.mirror()
	if failed := v.failedModel(); failed != nil {
		f := failed.Failure
		msg := fmt.Sprintf("model %s: %s: %s", failed.Name, f.Exit, f.Message)
		if len(failed.LogTail) > 0 {
			msg += "\n" + strings.Join(lastLines(failed.LogTail, 8), "\n")
		}
		if v.sharesWithOthers() && (v.served() || culpritOf(f.Exit) == v1alpha1.CulpritWorkload) {
			return v.evict(ctx, *failed, msg)
		}
		v.set(v1alpha1.ConditionModelLoaded, metav1.ConditionFalse, v1alpha1.ReasonModelFailed, msg)
		v.fail(f.Step, v1alpha1.ReasonModelFailed, culpritOf(f.Exit), msg)
		return proceed(), nil
	}
	waiting := v.notReady()
	if len(waiting) > 0 && len(waiting) < len(v.claim.Spec.Placements) && v.is(v1alpha1.ConditionEndpointPublished) &&
		v.is(v1alpha1.ConditionModelLoaded) {
		// One was placed here later, or starts again: the others serve, and their users see nothing of it.
		v.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing, "serving; "+strings.Join(waiting, "; "))
		return v.pollBoot(), nil
	}
	if len(waiting) > 0 {
		v.set(v1alpha1.ConditionModelLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoading, strings.Join(waiting, "; "))
		if v.is(v1alpha1.ConditionEndpointPublished) {
			v.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNotServing, strings.Join(waiting, "; "))
			return v.pollBoot(), nil
		}
		return v.loadOrLate(ctx)
	}
	loaded := "every placed model answered a completion"
	if len(v.claim.Spec.Placements) == 0 {
		loaded = "no model is placed yet"
	}
	v.set(v1alpha1.ConditionModelLoaded, metav1.ConditionTrue, v1alpha1.ReasonModelLoaded, loaded)
	v.reach("ModelLoaded", "")
	return proceed(), nil
}

func (v *visit) loadOrLate(ctx context.Context) (next, error) {
	if v.late(ctx) {
		v.fail("Load", v1alpha1.ReasonBootTimeout, v1alpha1.CulpritOffer,
			"models not ready within bootstrapTimeout: "+strings.Join(v.notReady(), "; "))
		return proceed(), nil
	}
	return v.pollBoot(), nil
}

func (v *visit) putModels(ctx context.Context) error {
	d := agentapi.DesiredModels{Generation: v.claim.Generation, Env: map[string]string{}}
	for _, p := range v.claim.Spec.Placements {
		d.Models = append(d.Models, agentapi.DesiredModel{Name: p.Workload, Source: p.Source, Args: p.Args,
			GPUs: int(p.GPUs), GPUFraction: int(p.GPUFraction)})
	}
	for _, e := range v.claim.Spec.Bootstrap.Env {
		d.Env[e.Name] = e.Value
	}
	if ref := v.claim.Spec.Bootstrap.HFTokenSecret; ref != nil {
		token, err := v.HFToken(ctx, *ref)
		if err != nil {
			return err
		}
		d.Env["HF_TOKEN"] = token
	}
	ctx, cancel := context.WithTimeout(ctx, v.Timing.AgentTimeout)
	defer cancel()
	return v.Workers.PutModels(ctx, v.claim.Status.Endpoint, string(v.claim.UID), d)
}

// mirror copies the agent's word on each placed model into the status, and its milestones into the steps.
func (v *visit) mirror() {
	v.claim.Status.Models = v.claim.Status.Models[:0:0]
	for _, m := range v.agent.Models {
		since := metav1.NewTime(m.Since).Rfc3339Copy() // as it is stored, so that it is written once
		v.claim.Status.Models = append(v.claim.Status.Models, v1alpha1.ModelStatus{Name: m.Name,
			State: v1alpha1.ModelState(m.State), Message: m.Message, Since: &since})
	}
	for _, s := range v.agent.Steps {
		if !slices.ContainsFunc(v.claim.Status.Steps, func(o v1alpha1.Step) bool { return o.Name == "Agent"+s.Name }) {
			v.claim.Status.Steps = append(v.claim.Status.Steps,
				v1alpha1.Step{Name: "Agent" + s.Name, At: metav1.NewMicroTime(s.At), Message: s.Message})
		}
	}
}

func (v *visit) failedModel() *agentapi.ModelInfo {
	for i, m := range v.agent.Models {
		if m.State == agentapi.StateFailed && m.Failure != nil {
			return &v.agent.Models[i]
		}
	}
	return nil
}

// notReady says how far each placed model is that does not serve yet. Without any the GPUs are waited for.
func (v *visit) notReady() []string {
	var out []string
	if len(v.claim.Spec.Placements) == 0 && (v.agent == nil || len(v.agent.GPUs) == 0) {
		return []string{"the agent has not found its GPUs yet"}
	}
	for _, p := range v.claim.Spec.Placements {
		state, msg := "not started", ""
		if v.agent != nil {
			for _, m := range v.agent.Models {
				if m.Name == p.Workload {
					state, msg = m.State, m.Message
				}
			}
		}
		if state != agentapi.StateReady {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", p.Workload, strings.ToLower(state), msg)))
		}
	}
	return out
}

// publish makes the worker visible to the gateway: it routes to claims whose endpoint is published.
func (v *visit) publish(ctx context.Context) (next, error) {
	v.set(v1alpha1.ConditionEndpointPublished, metav1.ConditionTrue, v1alpha1.ReasonPublished, "the gateway routes to "+v.claim.Status.Endpoint)
	v.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonServing, v.serving())
	v.reach(stepReady, "")
	var m memory
	for _, p := range v.claim.Spec.Placements {
		if v.Strikes.Clear(p.Workload) {
			m.Served = append(m.Served, p.Workload)
		}
		if k := WorkloadRestKey(p); v.Rests.Forgive(k) {
			m.Forgiven = append(m.Forgiven, k)
		}
	}
	v.remember(ctx, m)
	return proceed(), nil
}

// serve keeps looking.
func (v *visit) serve(context.Context) (next, error) { return waitFor(v.Timing.ReadyPoll), nil }

func (v *visit) serving() string {
	if len(v.claim.Spec.Placements) == 0 {
		return "ready for models"
	}
	return "serving " + strings.Join(v.modelNames(), ", ")
}

func (v *visit) modelNames() []string {
	var out []string
	for _, p := range v.claim.Spec.Placements {
		out = append(out, p.Workload)
	}
	return out
}

func lastLines(lines []string, n int) []string {
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return lines
}
