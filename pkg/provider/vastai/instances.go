package vastai

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/gpu"
	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

const (
	// pageSize is the most that a page holds (§4).
	pageSize = 25
	// maxPages stops a list whose pages never end: no account has ten thousand instances.
	maxPages = 400
)

// GetInstance reads one instance. A 200 with null is NotFound: a bad key would have been answered as such (§1, §4).
func (p *Provider) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	path, err := instancePath(opGet, id)
	if err != nil {
		return provider.Instance{}, err
	}
	reply, err := p.call(ctx, opGet, rest.Call{Endpoint: endpointGet, Method: http.MethodGet, Path: path})
	if err != nil {
		return provider.Instance{}, err
	}
	var got getReply
	if err := json.Unmarshal(reply.Body, &got); err != nil {
		return provider.Instance{}, p.odd(opGet, "the answer is not what a get answers: %v", err)
	}
	return p.one(got.Instances, id)
}

// one takes the three forms of §4: null and a list without it mean gone, an object and a list with it are it.
func (p *Provider) one(raw json.RawMessage, id string) (provider.Instance, error) {
	raw = bytes.TrimSpace(raw)
	gone := provider.Errorf(provider.VastAI, opGet, provider.NotFound, "no instance %s", id)
	switch {
	case len(raw) == 0: // the key is missing, which is not null
		return provider.Instance{}, p.odd(opGet, "the answer has no instances")
	case string(raw) == "null":
		return provider.Instance{}, gone
	}
	var list []wireInstance
	if raw[0] != '[' {
		list = make([]wireInstance, 1)
		if err := json.Unmarshal(raw, &list[0]); err != nil {
			return provider.Instance{}, p.odd(opGet, "the instance cannot be read: %v", err)
		}
		if strconv.FormatInt(list[0].ID, 10) != id {
			return provider.Instance{}, p.odd(opGet, "asked for instance %s, answered with %d", id, list[0].ID)
		}
	} else if err := json.Unmarshal(raw, &list); err != nil {
		return provider.Instance{}, p.odd(opGet, "the instances cannot be read: %v", err)
	}
	for _, w := range list {
		if strconv.FormatInt(w.ID, 10) == id {
			return w.instance(), nil
		}
	}
	return provider.Instance{}, gone
}

// ListInstances reads the v1 list to its last page (the v0 list is closed, §4). A Tag is looked up by the vendor; a
// prefix is matched here, because the vendor's filters know none.
func (p *Provider) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	query, err := listQuery(f)
	if err != nil {
		return nil, err
	}
	var all []provider.Instance
	seen := map[int64]bool{}
	tokens := map[string]bool{}
	for range maxPages {
		page, err := p.page(ctx, opList, query)
		if err != nil {
			return nil, err
		}
		for _, w := range *page.Instances {
			if !seen[w.ID] && f.Selects(value(w.Label)) {
				all = append(all, w.instance())
			}
			seen[w.ID] = true
		}
		token := value(page.NextToken)
		if token == "" {
			if f.Tag == "" && value(page.TotalInstances) > len(seen) {
				return nil, p.odd(opList, "%d of %d instances came", len(seen), *page.TotalInstances)
			}
			return all, nil
		}
		if tokens[token] {
			return nil, p.odd(opList, "the same page came twice")
		}
		tokens[token] = true
		query.Set("after_token", token)
	}
	return nil, p.odd(opList, "more than %d pages", maxPages)
}

func listQuery(f provider.InstanceFilter) (url.Values, error) {
	query := url.Values{
		"limit":    {strconv.Itoa(pageSize)},
		"order_by": {`[{"col":"id","dir":"asc"}]`},
	}
	if f.Tag != "" {
		filter, err := json.Marshal(map[string]op{"label": {"eq": f.Tag}})
		if err != nil {
			return nil, invalid(opList, "tag %q: %v", f.Tag, err)
		}
		query.Set("select_filters", string(filter))
	}
	return query, nil
}

func (p *Provider) page(ctx context.Context, op string, query url.Values) (listReply, error) {
	reply, err := p.call(ctx, op, rest.Call{
		Endpoint: endpointList,
		Method:   http.MethodGet,
		Path:     "/api/v1/instances/",
		Query:    query,
	})
	if err != nil {
		return listReply{}, err
	}
	var page listReply
	if err := json.Unmarshal(reply.Body, &page); err != nil {
		return listReply{}, p.odd(op, "the answer is not what a list answers: %v", err)
	}
	if page.Instances == nil {
		return listReply{}, p.odd(op, "the answer has no instances")
	}
	for _, w := range *page.Instances {
		if w.ID <= 0 {
			return listReply{}, p.odd(op, "an instance without an id")
		}
	}
	return page, nil
}

// DestroyInstance ends the rental and all that it bills; stopping would leave the disk billed (§5).
func (p *Provider) DestroyInstance(ctx context.Context, id string) error {
	path, err := instancePath(opDestroy, id)
	if err != nil {
		return err
	}
	reply, err := p.call(ctx, opDestroy, rest.Call{
		Endpoint: endpointDestroy,
		Method:   http.MethodDelete,
		Path:     path,
		Write:    true,
	})
	if err != nil {
		return err
	}
	if a, readable := readAnswer(reply.Body); !readable || a.Success == nil {
		return p.odd(opDestroy, "status 200 without success")
	}
	return nil
}

// CheckCredentials lists one instance, which a bad key fails, and then reads the balance where the key may: money
// that can be spent is balance and credit together (§1).
func (p *Provider) CheckCredentials(ctx context.Context) error {
	if err := p.tryKey(ctx); err != nil {
		return err
	}
	user, err := p.user(ctx)
	if provider.KindOf(err) == provider.Unauthorized {
		return nil // the key has just been accepted, so this is a key without the scope user_read
	}
	if err != nil {
		return err
	}
	if (user.Balance != nil || user.Credit != nil) && value(user.Balance)+value(user.Credit) <= 0 {
		return provider.Errorf(provider.VastAI, opCheck, provider.NoBalance, "balance and credit come to $%.2f",
			value(user.Balance)+value(user.Credit))
	}
	return nil
}

// AccountID is the user's number (§1). A key without the scope user_read cannot tell, nor an answer without a number.
func (p *Provider) AccountID(ctx context.Context) (string, error) {
	user, err := p.user(ctx)
	if provider.KindOf(err) == provider.Unauthorized {
		return "", p.tryKey(ctx)
	}
	if err != nil {
		return "", err
	}
	id := user.ID.String()
	if n, err := strconv.ParseUint(id, 10, 64); id != "" && (err != nil || n == 0) {
		return "", p.odd(opCheck, "the user's id is %q", id)
	}
	return id, nil
}

// tryKey makes a call that every accepted key may make.
func (p *Provider) tryKey(ctx context.Context) error {
	_, err := p.page(ctx, opCheck, url.Values{"limit": {"1"}})
	return err
}

func (p *Provider) user(ctx context.Context) (userReply, error) {
	var user userReply
	reply, err := p.call(ctx, opCheck, rest.Call{
		Endpoint: endpointUser,
		Method:   http.MethodGet,
		Path:     "/api/v0/users/current/",
	})
	if err != nil {
		return user, err
	}
	if err := json.Unmarshal(reply.Body, &user); err != nil {
		return user, p.odd(opCheck, "the answer is not what users/current answers: %v", err)
	}
	return user, nil
}

func instancePath(op, id string) (string, error) {
	if n, err := strconv.ParseInt(id, 10, 64); err != nil || n <= 0 {
		return "", invalid(op, "instance id %q is not a number", id)
	}
	return "/api/v0/instances/" + id + "/", nil
}

// instance translates a rental.
func (w wireInstance) instance() provider.Instance {
	state := w.state()
	kind := provider.OnDemand
	if value(w.IsBid) {
		kind = provider.Spot
	}
	out := provider.Instance{
		Provider:     provider.VastAI,
		ID:           strconv.FormatInt(w.ID, 10),
		Tag:          value(w.Label),
		State:        state,
		Message:      strings.TrimSpace(value(w.StatusMsg)),
		Interrupted:  w.interrupted(),
		CapacityType: kind,
		GPU:          gpu.Canonical(string(provider.VastAI), value(w.GPUName), int(value(w.GPURAM))),
		GPUCount:     value(w.NumGPUs),
		Region:       region(w.Geolocation),
		CreatedAt:    epoch(w.StartDate),
		EndsAt:       epoch(w.EndDate),
		RestKeys:     restKeys(w.MachineID, w.HostID),
	}
	// Zero is no rate at which anything is rented: taken for one it would free what was set aside for this.
	if amount := w.DPHTotal.amount; amount != nil && *amount > 0 {
		if rate, err := money.CeilFromFloat(*amount); err == nil {
			out.Price = &rate
		}
	}
	// Either both or neither: an address without a port reaches nothing.
	if port := w.port(); port > 0 {
		if address := strings.TrimSpace(value(w.PublicIPAddr)); address != "" {
			out.Address, out.Port = address, port
		}
	}
	return out
}

// states is the table of §4. "scheduling", "connecting" and other console words are not in it.
func states() map[string]provider.State {
	return map[string]provider.State{
		"":           provider.StatePending, // null: the host has not reported yet
		"created":    provider.StatePending,
		"loading":    provider.StatePending,
		"running":    provider.StateRunning,
		"rebooting":  provider.StatePending,
		"restarting": provider.StatePending,
		"stopped":    provider.StateStopped,
		"frozen":     provider.StateStopped,
		"exited":     provider.StateFailed,
		"unknown":    provider.StateLost,
		"offline":    provider.StateLost,
	}
}

func (w wireInstance) state() provider.State {
	state, known := states()[string(w.ActualStatus)]
	switch {
	case !known:
		return provider.StateUnknown
	case state == provider.StatePending && w.allStopped():
		return provider.StateStopped // outbid before it ran: nothing will report any more
	case state == provider.StatePending && cannotStart(value(w.StatusMsg)):
		return provider.StateFailed
	}
	return state
}

// interrupted: a bid that is down. This driver never stops an instance, so it was not we; whether the vendor then
// says that running or stopped is intended is not known (§6), so it is not asked. Software that ended while its contract
// runs on (cur_state) crashed: nobody took its GPU.
func (w wireInstance) interrupted() bool {
	if !value(w.IsBid) {
		return false
	}
	switch w.ActualStatus {
	case "stopped":
		return true
	case "exited":
		return value(w.CurState) != "running"
	}
	return w.allStopped()
}

// allStopped is how others recognise an outbid instance, whatever the host last reported (§6).
func (w wireInstance) allStopped() bool {
	return value(w.CurState) == "stopped" && value(w.IntendedStatus) == "stopped" && value(w.NextState) == "stopped"
}

// cannotStart recognises the errors with which an instance stays created or loading for ever (§4).
func cannotStart(msg string) bool {
	msg = strings.ToLower(msg)
	for _, words := range []string{
		"oci runtime create failed", "error response from daemon", "failed to pull", "pull access denied",
		"manifest unknown", "no space left on device",
	} {
		if strings.Contains(msg, words) {
			return true
		}
	}
	return false
}

// port is where the port that create published can be reached, 0 until it is known. Which one that was is read from
// the flag or the variable in the instance's environment; an image may publish others by EXPOSE (§9).
func (w wireInstance) port() int {
	for _, pair := range w.ExtraEnv {
		if len(pair) < 2 {
			continue
		}
		if inside, ok := strings.CutPrefix(pair[0], "-p "); ok {
			_, inside, _ = strings.Cut(inside, ":")
			return w.hostPort(strings.TrimSpace(inside) + "/tcp")
		}
		if pair[0] == portVariable {
			return w.hostPort(pair[1] + "/tcp")
		}
	}
	if len(w.Ports) == 1 {
		for name := range w.Ports {
			return w.hostPort(name)
		}
	}
	return 0
}

func (w wireInstance) hostPort(name string) int {
	if !strings.HasSuffix(name, "/tcp") || len(w.Ports[name]) == 0 {
		return 0
	}
	port, err := strconv.Atoi(string(w.Ports[name][0].HostPort))
	if err != nil || port < 1 || port > 65535 {
		return 0
	}
	return port
}

// epoch reads seconds since 1970; zero for null.
func epoch(s *float64) time.Time {
	if s == nil || !(*s > 0 && *s < 1e11) {
		return time.Time{}
	}
	whole, frac := math.Modf(*s)
	return time.Unix(int64(whole), int64(frac*1e9)).UTC()
}
