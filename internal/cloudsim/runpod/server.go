package runpod

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Options choose among the behaviours that the vendor has been seen to have. The zero value is the documented one.
type Options struct {
	// Keys open the account.
	Keys []string
	// ReadOnlyKeys open it too and may change nothing.
	ReadOnlyKeys []string
	// LimitScale multiplies the times in which calls are counted: 0 means 1, negative switches the limits off.
	LimitScale float64
	// PortLag is how long after its start a pod runs without a runtime, and as long again without ports: two seconds when
	// zero, none when negative.
	PortLag time.Duration
	// PageSize pages the list of pods, as newer servers do; 0 does not.
	PageSize int
	// CapacityText is the sentence for a lack of capacity, and CapacityStatus its status; the classic one and 400 when
	// empty.
	CapacityText   string
	CapacityStatus int
	// EmptyRuntime shows {} instead of null for a pod that does not run.
	EmptyRuntime bool
	// StalePorts leaves the last ports on a pod that has ended.
	StalePorts bool
	// MinRAM takes gpu.minRamPerGpu in a create, as newer servers do, and serves a description that has it.
	MinRAM bool
	// PriceText writes prices and costs as strings.
	PriceText bool
	// CostWithoutDisk leaves the disk out of a pod's cost, though it is billed.
	CostWithoutDisk bool
	// RestartExited starts a pod again whose software ended, before anybody sees it ended.
	RestartExited bool
	// BusyUntilRunning refuses to end a pod with 409 until it runs.
	BusyUntilRunning bool
	// HiddenDelete answers the end of a pod that is not shown yet with 404, and does nothing.
	HiddenDelete bool
}

// Server is the façade. Serve it from a real HTTP server: faults cut connections.
type Server struct {
	market *market.Market
	opts   Options
	quota  *quota
	mux    *http.ServeMux

	mu    sync.Mutex
	types map[string]gpuType
	order []string
	early map[string]bool
}

// New puts RunPod's API in front of a market whose offers are as DefaultOffers makes them.
func New(m *market.Market, o Options) *Server {
	if o.PortLag == 0 {
		o.PortLag = 2 * time.Second
	}
	if o.CapacityText == "" {
		o.CapacityText = "There are no longer any instances available with the requested specifications. Please refresh and try again."
	}
	if o.CapacityStatus == 0 {
		o.CapacityStatus = http.StatusBadRequest
	}
	s := &Server{market: m, opts: o, quota: newQuota(m.Clock(), o.LimitScale), mux: http.NewServeMux(),
		types: map[string]gpuType{}, early: map[string]bool{}}
	for pattern, e := range map[string]endpoint{
		"GET /v2/catalog/gpus":         {op: market.OpSearch, serve: s.gpus},
		"GET /v2/pods":                 {op: market.OpList, serve: s.list},
		"POST /v2/pods":                {op: market.OpCreate, write: true, serve: s.create},
		"GET /v2/pods/{id}":            {op: market.OpGet, own: true, serve: s.get},
		"DELETE /v2/pods/{id}":         {op: market.OpDestroy, own: true, write: true, serve: s.delete},
		"POST /v2/pods/{id}/action":    {op: market.OpUpdate, own: true, write: true, serve: s.act},
		"GET /v2/billing/pods":         {op: market.OpAccount, serve: s.bills},
		"GET /v2/catalog/gpus/{id...}": {op: market.OpSearch, serve: s.gpu},
	} {
		s.mux.Handle(pattern, s.guard(e))
	}
	s.mux.HandleFunc("GET /v2/openapi.json", s.describe)
	return s
}

// describe is the part of the description in which servers are known to differ. It needs no key.
func (s *Server) describe(w http.ResponseWriter, _ *http.Request) {
	gpu := object{"id": object{"type": "string"}, "count": object{"type": "integer"}, "minCudaVersion": object{"type": "string"}}
	if s.opts.MinRAM {
		gpu["minRamPerGpu"] = object{"type": "integer"}
	}
	reply(w, http.StatusOK, object{"openapi": "3.1.0", "components": object{"schemas": object{"CreateGpuConfig": object{
		"type": "object", "properties": gpu, "unevaluatedProperties": false}}}})
}

// account is the market account that Options.Keys open.
const account = "runpod-account"

// Account is the market account that Options.Keys open.
func (s *Server) Account() string { return account }

// endpoint is one call: who may make it and what may go wrong with it.
type endpoint struct {
	op market.Op
	// own serves a pod's key for its own pod too; write changes something.
	own, write bool
	serve      func(w http.ResponseWriter, r *http.Request, c caller)
}

// caller is who asks: the account, or one of its pods.
type caller struct {
	pod      string // set when the key is a pod's own
	readOnly bool
}

// by is the market's word for who ended an instance.
func (c caller) by() string {
	if c.pod != "" {
		return "instance"
	}
	return "tenant"
}

// maxBody is more than the vendor reads of a request, whoever sends it.
const maxBody = 100 << 10

// ServeHTTP turns away what the firewall turns away, and a body that is too long, before it asks for a key.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.UserAgent() == "" || strings.HasPrefix(r.UserAgent(), "Go-http-client"):
		page(w, http.StatusForbidden, "Sorry, you have been blocked")
	case r.ContentLength > maxBody:
		fail(w, http.StatusRequestEntityTooLarge, "request body too large")
	default:
		s.mux.ServeHTTP(w, r)
	}
}

func (s *Server) guard(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		c, ok := s.identify(strings.TrimSpace(key))
		if !ok {
			detail := "invalid bearer token"
			if key == "" {
				detail = "missing bearer token"
			}
			fail(w, http.StatusUnauthorized, detail)
			return
		}
		after, exceeded := s.quota.admit(w.Header())
		switch {
		case exceeded != "":
			tooMany(w, exceeded, after)
			return
		case c.pod != "" && (!e.own || c.pod != r.PathValue("id")), c.readOnly && e.write:
			fail(w, http.StatusForbidden, "access denied")
			return
		}
		s.market.WithFaults(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.serve(w, r, c) }),
			func(*http.Request) market.Op { return e.op },
			func(w http.ResponseWriter, _ *http.Request, f market.Fault) {
				if f == market.TooMany {
					tooMany(w, "minute", 12*time.Second)
					return
				}
				page(w, http.StatusBadGateway, "502 Bad Gateway")
			},
		).ServeHTTP(w, r)
	})
}

func (s *Server) identify(key string) (caller, bool) {
	switch {
	case key == "":
		return caller{}, false
	case slices.Contains(s.opts.Keys, key):
		return caller{}, true
	case slices.Contains(s.opts.ReadOnlyKeys, key):
		return caller{readOnly: true}, true
	}
	if in, ok := s.market.ByKey(key); ok && in.Account == account {
		return caller{pod: in.ID}, true
	}
	return caller{}, false
}

func tooMany(w http.ResponseWriter, window string, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
	fail(w, http.StatusTooManyRequests, "rate limit exceeded for the "+window+" window")
}
