package verda

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// GetInstance reads one instance.
func (p *Provider) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	w, err := p.instance(ctx, opGet, id)
	if err != nil {
		return provider.Instance{}, err
	}
	return w.instance(), nil
}

// instance is NotFound for one that the vendor calls gone.
func (p *Provider) instance(ctx context.Context, op, id string) (wireInstance, error) {
	var w wireInstance
	if !identifier.MatchString(id) {
		return w, invalid(op, "instance id %q", id)
	}
	reply, err := p.call(ctx, op, rest.Call{Endpoint: endpointInstances, Method: http.MethodGet, Path: "/instances/" + id})
	if err != nil {
		return w, err
	}
	if err := json.Unmarshal(reply.Body, &w); err != nil {
		return w, p.odd(op, "the answer is not what a get answers: %v", err)
	}
	if w.ID != id {
		return w, p.odd(op, "asked for instance %s, answered with %q", id, w.ID)
	}
	if p.gone(w) {
		return w, provider.Errorf(provider.Verda, op, provider.NotFound, "instance %s is %s", id, w.Status)
	}
	return w, nil
}

// gone: what the vendor calls so, and a discontinued one that it refused to end because it has ended.
func (p *Provider) gone(w wireInstance) bool {
	switch w.Status {
	case "deleted", "notfound":
		return true
	case discontinued:
		_, ended := p.ended.Load(w.ID)
		return ended
	}
	return false
}

// ListInstances reads the list, which has no pages (§4). The tag is the hostname. Whoever lists what an installation rents
// also has removed, now and then, what its ended instances left and still bills: there may never be another end.
func (p *Provider) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	all, err := p.instances(ctx, opList)
	if err != nil {
		return nil, err
	}
	var out []provider.Instance
	for _, w := range all {
		if !p.gone(w) && f.Selects(w.Hostname) {
			out = append(out, w.instance())
		}
	}
	_ = p.tidy(ctx, f.TagPrefix) // The list is whole; what could not be removed is tried again.
	return out, nil
}

func (p *Provider) instances(ctx context.Context, op string) ([]wireInstance, error) {
	reply, err := p.call(ctx, op, rest.Call{Endpoint: endpointInstances, Method: http.MethodGet, Path: "/instances"})
	if err != nil {
		return nil, err
	}
	var all []wireInstance
	if err := json.Unmarshal(reply.Body, &all); err != nil {
		return nil, p.odd(op, "the answer is not what a list answers: %v", err)
	}
	if all == nil {
		return nil, p.odd(op, "the list is null")
	}
	for _, w := range all {
		if w.ID == "" {
			return nil, p.odd(op, "an instance without an id")
		}
	}
	return all, nil
}

// DestroyInstance ends the rental, and with it its disk for good and its script. Other disks that somebody attached are
// detached and not touched. While an instance is provisioned the vendor refuses, which is Unavailable (§5). A spot instance
// that was taken back is not to be ended any more; what it left is.
func (p *Provider) DestroyInstance(ctx context.Context, id string) error {
	w, err := p.instance(ctx, opDestroy, id)
	if provider.KindOf(err) == provider.NotFound {
		w, err = wireInstance{ID: id}, nil // It may not be listed yet.
	}
	if err != nil {
		return err
	}
	switch err := p.end(ctx, w); {
	case hasEnded(err):
		if disk := value(w.OSVolumeID); disk != "" {
			if err := p.removeVolume(ctx, disk); err != nil {
				return err
			}
		}
		p.ended.Store(id, true)
	case err != nil:
		return err
	}
	if script := value(w.ScriptID); script != "" {
		_ = p.removeScript(ctx, script) // The rental has ended, which is what was asked; tidy removes what is left.
	}
	_ = p.tidy(ctx, w.Hostname) // As above: it is tried again with a later instance.
	return nil
}

func (p *Provider) end(ctx context.Context, w wireInstance) error {
	request := actionRequest{ID: []string{w.ID}, Action: "delete", Permanent: true}
	if disk := value(w.OSVolumeID); disk != "" {
		request.Volumes = []string{disk}
	}
	reply, err := p.call(ctx, opDestroy, rest.Call{Endpoint: endpointWrites, Method: http.MethodPut, Path: "/instances", Body: request, Write: true})
	if err != nil || reply.Status == http.StatusNoContent {
		return err
	}
	var results []actionResult
	if err := json.Unmarshal(reply.Body, &results); err != nil || len(results) == 0 {
		return p.odd(opDestroy, "status %d without an account of what was done", reply.Status)
	}
	for _, r := range results {
		if said := strings.Trim(string(r.Error), `" `); r.InstanceID == w.ID && (r.Status != "success" || said != "" && said != "null") {
			status := r.StatusCode
			if status/100 == 2 || status == 0 {
				status = http.StatusConflict
			}
			body, err := json.Marshal(failure{Message: said})
			if err != nil {
				return p.odd(opDestroy, "%v", err)
			}
			return p.failure(opDestroy, true, rest.Reply{Status: status, Body: body})
		}
	}
	return nil
}

// CheckCredentials reads the balance, which cannot be read without them.
func (p *Provider) CheckCredentials(ctx context.Context) error {
	var b balanceReply
	if err := p.read(ctx, opCheck, "/balance", nil, &b); err != nil {
		return err
	}
	if b.Amount.value == nil {
		return p.odd(opCheck, "the balance has no amount")
	}
	if *b.Amount.value <= 0 {
		return provider.Errorf(provider.Verda, opCheck, provider.NoBalance, "the balance is %.2f", *b.Amount.value)
	}
	return nil
}

const (
	running      = "running"
	discontinued = "discontinued"
)

// states is the table of §4.
func states() map[string]provider.State {
	return map[string]provider.State{
		"new":                  provider.StatePending,
		"ordered":              provider.StatePending,
		"provisioning":         provider.StatePending,
		"validating":           provider.StatePending,
		"pending":              provider.StatePending,
		"restoring":            provider.StatePending,
		running:                provider.StateRunning,
		"offline":              provider.StateStopped,
		"starting_hibernation": provider.StateStopped,
		"hibernating":          provider.StateStopped,
		"deleting":             provider.StateEnding,
		discontinued:           provider.StateFailed,
		"no_capacity":          provider.StateFailed,
		"error":                provider.StateFailed,
		"unknown":              provider.StateLost,
	}
}

// instance translates a rental. An address that is there before the machine runs is none yet.
func (w wireInstance) instance() provider.Instance {
	state, known := states()[w.Status]
	if !known {
		state = provider.StateUnknown
	}
	name, _ := gpuOf(w.InstanceType, w.GPU, w.GPUMemory)
	out := provider.Instance{
		Provider: provider.Verda, ID: w.ID, Tag: w.Hostname, State: state, Message: w.Status,
		// Nobody else ends a spot instance that way; on-demand it is what an empty account meets.
		Interrupted:  w.IsSpot && w.Status == discontinued,
		CapacityType: capacity(w.IsSpot), GPU: name, GPUCount: w.GPU.Count, Region: w.Location, CreatedAt: moment(w.CreatedAt),
		RestKeys: restKeys(w.InstanceType, w.Location, w.IsSpot),
	}
	if port, err := strconv.Atoi(strings.TrimPrefix(w.Description, descriptionPort)); err == nil && value(w.IP) != "" && state == provider.StateRunning {
		out.Address, out.Port = *w.IP, port
	}
	return out
}

// moment reads a time; zero where it cannot be read.
func moment(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
