package runpod

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// maxPages stops a list whose pages never end: no account has so many pods.
const maxPages = 400

// terminated is the state of a pod that is gone, as long as it is still shown (§4).
const terminated = "TERMINATED"

// GetInstance reads one pod. One that is shown as terminated is NotFound.
func (p *Provider) GetInstance(ctx context.Context, id string) (provider.Instance, error) {
	path, err := podPath(opGet, id)
	if err != nil {
		return provider.Instance{}, err
	}
	reply, err := p.call(ctx, opGet, rest.Call{Method: http.MethodGet, Path: path})
	if err != nil {
		return provider.Instance{}, err
	}
	var pod wirePod
	if err := json.Unmarshal(reply.Body, &pod); err != nil {
		return provider.Instance{}, p.odd(opGet, "the answer is not what a get answers: %v", err)
	}
	if pod.ID != id {
		return provider.Instance{}, p.odd(opGet, "asked for pod %s, answered with %q", id, pod.ID)
	}
	if value(pod.Status) == terminated {
		return provider.Instance{}, provider.Errorf(provider.RunPod, opGet, provider.NotFound, "pod %s is terminated", id)
	}
	return p.instance(pod), nil
}

// ListInstances reads all pods of the account, to the last page where the server has pages. The vendor has no filter for
// names, so they are compared here (§4).
func (p *Provider) ListInstances(ctx context.Context, f provider.InstanceFilter) ([]provider.Instance, error) {
	var all []provider.Instance
	seen, cursors := map[string]bool{}, map[string]bool{}
	query := url.Values{"includeClusterPods": {"false"}} // ours are in no cluster, and what is could not be ended here
	for range maxPages {
		page, err := p.page(ctx, opList, query)
		if err != nil {
			return nil, err
		}
		for _, pod := range *page.Pods {
			if !seen[pod.ID] && value(pod.Status) != terminated && f.Selects(value(pod.Name)) {
				all = append(all, p.instance(pod))
			}
			seen[pod.ID] = true
		}
		if page.Pagination == nil || !page.Pagination.HasNextPage {
			return all, nil
		}
		cursor := value(page.Pagination.NextCursor)
		if cursor == "" {
			return nil, p.odd(opList, "there is another page and nothing to ask for it by")
		}
		if cursors[cursor] {
			return nil, p.odd(opList, "the same page came twice")
		}
		cursors[cursor] = true
		query.Set("cursor", cursor)
	}
	return nil, p.odd(opList, "more than %d pages", maxPages)
}

func (p *Provider) page(ctx context.Context, op string, query url.Values) (podList, error) {
	reply, err := p.call(ctx, op, rest.Call{Method: http.MethodGet, Path: "/v2/pods", Query: query})
	if err != nil {
		return podList{}, err
	}
	var page podList
	if err := json.Unmarshal(reply.Body, &page); err != nil {
		return podList{}, p.odd(op, "the answer is not what a list answers: %v", err)
	}
	if page.Pods == nil {
		return podList{}, p.odd(op, "the answer has no pods")
	}
	for _, pod := range *page.Pods {
		if !podID.MatchString(pod.ID) {
			return podList{}, p.odd(op, "a pod without an id")
		}
	}
	return page, nil
}

// DestroyInstance terminates the pod: stopping would leave its disk billed, and a start may find no GPU (§5). A pod that
// is busy is Unavailable, and one that is seconds old may be NotFound and there all the same (§3).
func (p *Provider) DestroyInstance(ctx context.Context, id string) error {
	path, err := podPath(opDestroy, id)
	if err != nil {
		return err
	}
	reply, err := p.call(ctx, opDestroy, rest.Call{Method: http.MethodDelete, Path: path, Write: true})
	if err != nil {
		return err
	}
	if reply.Status != http.StatusNoContent && !json.Valid(reply.Body) {
		return p.odd(opDestroy, "status %d with what is no answer", reply.Status)
	}
	return nil
}

// CheckCredentials lists the pods, which a bad key fails (§1). The API does not tell what the account has left.
func (p *Provider) CheckCredentials(ctx context.Context) error {
	_, err := p.page(ctx, opCheck, nil)
	return err
}

func podPath(op, id string) (string, error) {
	if !podID.MatchString(id) {
		return "", invalid(op, "instance id %q is no pod's", id)
	}
	return "/v2/pods/" + id, nil
}

// instance translates a pod.
func (p *Provider) instance(w wirePod) provider.Instance {
	out := provider.Instance{
		Provider:     provider.RunPod,
		ID:           w.ID,
		Tag:          value(w.Name),
		State:        w.state(),
		Message:      value(w.Status),
		CapacityType: provider.OnDemand,
		Region:       value(w.DataCenterID),
		Price:        p.server.whole(w, w.price()),
		CreatedAt:    moment(w.CreatedAt),
	}
	if w.GPU != nil {
		out.GPU, out.GPUCount = gpuName(w.GPU.ID, "", 0), max(value(w.GPU.Count), 1)
		at := placement{GPU: w.GPU.ID, Count: out.GPUCount, Cloud: value(w.Cloud), DataCenter: out.Region}
		out.RestKeys = at.restKeys()
	}
	if out.State == provider.StateRunning {
		out.Address, out.Port = w.endpoint()
	}
	return out
}

// states is the table of §4 but for TERMINATED. What an exited pod ended by is not told: its owner, its software, an empty
// account or a host that failed look alike (§6), and none of them is a reclaim.
func states() map[string]provider.State {
	return map[string]provider.State{
		"PROVISIONING": provider.StatePending,
		"STARTING":     provider.StatePending,
		"RUNNING":      provider.StateRunning,
		"EXITED":       provider.StateStopped,
		"ERROR":        provider.StateFailed,
	}
}

func (w wirePod) state() provider.State {
	if state, known := states()[value(w.Status)]; known {
		return state
	}
	return provider.StateUnknown
}

// price is the rate as billed. 0 is what a pod shows that is not running (§8): its disk may be billed all the same, so it
// counts as nothing said.
func (w wirePod) price() *money.Dollars {
	if w.Cost.value == nil {
		return nil
	}
	price, err := money.CeilFromFloat(*w.Cost.value)
	if err != nil || !(money.Dollars{}).Less(price) {
		return nil
	}
	return &price
}

// endpoint is where the one TCP port that create published is reached; empty until it is. Rows of type http are inside the
// vendor's proxy, and community hosts may have no address (§4).
func (w wirePod) endpoint() (address string, port int) {
	inside := w.inside()
	if w.Runtime == nil || inside == 0 {
		return "", 0
	}
	for _, row := range w.Runtime.Ports {
		outside, ip := value(row.Public), strings.TrimSpace(value(row.IP))
		if row.Private != inside || row.Type != "tcp" || outside < 1 || outside > 65535 {
			continue
		}
		if addr, err := netip.ParseAddr(ip); err == nil && !carrierNAT.Contains(addr) {
			return ip, outside
		}
	}
	return "", 0
}

// carrierNAT are addresses that are reached from inside the vendor's network only.
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

// inside is the port of the first "N/tcp" that the pod publishes, 0 without any.
func (w wirePod) inside() int {
	for _, p := range w.Ports {
		number, isTCP := strings.CutSuffix(p, "/tcp")
		if n, err := strconv.Atoi(number); isTCP && err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// moment reads RFC 3339; zero for null and for what is none.
func moment(s *string) time.Time {
	t, err := time.Parse(time.RFC3339, value(s))
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}
