package tensordock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// atOnce is how many instances of a list are asked for together: each call may take many seconds (§1), and the pace
// bounds them all the same.
const atOnce = 8

// GetInstance reads one instance. One that is said to be deleted is NotFound.
func (p *Provider) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	w, err := p.get(ctx, id)
	if err != nil {
		return provider.Instance{}, err
	}
	if w.gone() {
		return provider.Instance{}, provider.Errorf(provider.TensorDock, opGet, provider.NotFound, "instance %s is %s", id, w.Status)
	}
	return w.instance(), nil
}

func (p *Provider) get(ctx context.Context, id string) (wireVM, error) {
	if !word.MatchString(id) {
		return wireVM{}, invalid(opGet, "instance id %q", id)
	}
	reply, err := p.call(ctx, opGet, rest.Call{Method: http.MethodGet, Path: "/api/v2/instances/" + id})
	if err != nil {
		return wireVM{}, err
	}
	w, err := readVM(reply.Body)
	if err != nil {
		return wireVM{}, p.odd(opGet, "the answer is no instance: %v", err)
	}
	if string(w.ID) != id {
		return wireVM{}, p.odd(opGet, "asked for instance %s, answered with %q", id, w.ID)
	}
	return w, nil
}

// ListInstances reads the list, which the vendor cannot filter, and completes each selected instance that the list shows
// in part by a call of its own. One that is gone by then stays as the list has it.
func (p *Provider) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	listed, err := p.list(ctx, opList)
	if err != nil {
		return nil, err
	}
	// One that the list does not name may be any.
	listed = slices.DeleteFunc(listed, func(w wireVM) bool { return w.gone() || w.Name != "" && !w.selected(f) })
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, w := range listed {
		if w.complete() {
			continue
		}
		group.Go(func() error {
			whole, err := p.get(ctx, string(w.ID))
			if provider.KindOf(err) == provider.NotFound {
				return nil
			}
			if err == nil {
				listed[i] = whole
			}
			return ofList(err)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var out []provider.Instance
	for _, w := range listed {
		if !w.gone() && w.selected(f) {
			out = append(out, w.instance())
		}
	}
	return out, nil
}

// ofList is an error of one of a list's calls.
func ofList(err error) error {
	var e *provider.Error
	if errors.As(err, &e) {
		e.Op = opList
	}
	return err
}

// list reads the three forms of §4.
func (p *Provider) list(ctx context.Context, op string) ([]wireVM, error) {
	reply, err := p.call(ctx, op, rest.Call{Method: http.MethodGet, Path: "/api/v2/instances"})
	if err != nil {
		return nil, err
	}
	var l listReply
	if err := json.Unmarshal(reply.Body, &l); err != nil {
		return nil, p.odd(op, "the answer is not what a list answers: %v", err)
	}
	items := &[]json.RawMessage{}
	if data := bytes.TrimSpace(l.Data); len(data) > 0 && data[0] == '{' {
		var inner listData
		err = json.Unmarshal(data, &inner)
		items = inner.Instances
	} else if err = json.Unmarshal(l.Data, &items); len(data) == 0 {
		items = nil
	}
	if err != nil || items == nil {
		return nil, p.odd(op, "the answer has no instances (%v)", err)
	}
	if l.Links.Next != "" || l.Meta.Total.whole() > len(*items) {
		return nil, p.odd(op, "%d instances came, and there are more", len(*items))
	}
	out := make([]wireVM, len(*items))
	for i, raw := range *items {
		w, err := readVM(raw)
		if err != nil || !word.MatchString(string(w.ID)) {
			return nil, p.odd(op, "an instance %q that cannot be read (%v)", w.ID, err)
		}
		out[i] = w
	}
	return out, nil
}

// DestroyInstance ends the rental and all that it bills; a stopped VM would be billed on (§5). The end comes later.
func (p *Provider) DestroyInstance(ctx context.Context, id string) error {
	if !word.MatchString(id) {
		return invalid(opDestroy, "instance id %q", id)
	}
	reply, err := p.call(ctx, opDestroy, rest.Call{Method: http.MethodDelete, Path: "/api/v2/instances/" + id, Write: true})
	if err != nil {
		return err
	}
	if reply.Status == http.StatusNoContent {
		return nil
	}
	var a answer
	if json.Unmarshal(reply.Body, &a) != nil || len(a.Data) == 0 && a.Message == "" {
		return p.odd(opDestroy, "status %d without a word of success", reply.Status)
	}
	return nil
}

// CheckCredentials lists the instances, which a bad token fails. Lists of what is for sale may be public, and no call
// for the balance is known (§1), so that an empty account shows first when it is to pay.
func (p *Provider) CheckCredentials(ctx context.Context) error {
	_, err := p.list(ctx, opCheck)
	return err
}

// states is the table of §4, in lower case without separators.
func states() map[string]provider.State {
	return map[string]provider.State{
		"queued":       provider.StatePending,
		"pending":      provider.StatePending,
		"provisioning": provider.StatePending,
		"creating":     provider.StatePending,
		"starting":     provider.StatePending,
		"running":      provider.StateRunning,
		"stopping":     provider.StateStopped, // on its way, and nobody is served any more
		"stopped":      provider.StateStopped,
		disassociated:  provider.StateStopped,
		outbid:         provider.StateStopped,
		"deleting":     provider.StateEnding,
		"error":        provider.StateFailed,
	}
}

const (
	// disassociated: off, and the GPU is on sale again (§4). This driver stops nothing, so somebody took it.
	disassociated = "stoppeddisassociated"
	// outbid is a spot VM's, which only the old API made (§6).
	outbid = "outbid"
)

var separators = strings.NewReplacer("_", "", "-", "", " ", "")

func (w wireVM) word() string { return separators.Replace(strings.ToLower(string(w.Status))) }

func (w wireVM) gone() bool { return slices.Contains([]string{"deleted", "terminated"}, w.word()) }

func (w wireVM) state() provider.State {
	if state, known := states()[w.word()]; known {
		return state
	}
	return provider.StateUnknown
}

func (w wireVM) selected(f provider.InstanceFilter) bool {
	tag, _ := fromName(string(w.Name))
	return f.Selects(tag)
}

// complete reports whether a list's item says all that the instance's own answer would.
func (w wireVM) complete() bool {
	address, port := w.endpoint()
	return w.Name != "" && len(w.Resources.GPUs) > 0 && (w.state() != provider.StateRunning || address != "" && port > 0 && w.RateHourly.known)
}

// instance translates a VM.
func (w wireVM) instance() provider.Instance {
	tag, _ := fromName(string(w.Name))
	v0Name, count := w.gpus()
	out := provider.Instance{
		Provider:     provider.TensorDock,
		ID:           string(w.ID),
		Tag:          tag,
		State:        w.state(),
		Message:      string(w.Status),
		Interrupted:  slices.Contains([]string{disassociated, outbid}, w.word()),
		CapacityType: provider.OnDemand,
		GPU:          gpu.Canonical(string(provider.TensorDock), v0Name, vramGB(v0Name)*1024),
		GPUCount:     count,
		RestKeys:     restKeys(string(w.HostnodeID), string(w.LocationID), v0Name),
	}
	if at, err := time.Parse(time.RFC3339, string(w.CreatedAt)); err == nil {
		out.CreatedAt = at.UTC()
	}
	if out.State == provider.StateRunning {
		out.Price = w.price()
		out.Address, out.Port = w.endpoint()
	}
	return out
}

// gpus is the one model in a VM; several, which nobody sells, are none that is known.
func (w wireVM) gpus() (v0Name string, count int) {
	for key, g := range w.Resources.GPUs {
		v0Name, count = key, count+g.Count.whole()
	}
	if len(w.Resources.GPUs) > 1 {
		v0Name = ""
	}
	return v0Name, count
}

// price is the rate read back, nil where there is none. Nothing is free, so zero is one that is not known yet; and of a
// VM that does not run it would be only a part of what is promised to it.
func (w wireVM) price() *money.Dollars {
	rate, err := money.CeilFromFloat(w.RateHourly.v)
	if !w.RateHourly.known || err != nil || rate.IsZero() {
		return nil
	}
	return &rate
}

// endpoint is where the agent's port is reached: the port itself on an address of the VM's own, else what it is forwarded
// from (§9), which may be other than what was asked for, and late. Either both or neither is known.
func (w wireVM) endpoint() (address string, port int) {
	address = strings.TrimSpace(string(w.IPAddress))
	if address == "" {
		return "", 0
	}
	if _, own := fromName(string(w.Name)); own > 0 {
		return address, own
	}
	for _, f := range w.Forwards {
		if external := f.External.whole(); f.Internal.known && f.Internal.whole() != sshPort && external > 0 && external <= maxPort {
			return address, external
		}
	}
	return "", 0
}
