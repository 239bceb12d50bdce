package tensordock

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Options choose among the behaviours that the vendor has been seen to have, and those that are not known. The zero
// value is what is most likely.
type Options struct {
	// Tokens open the account.
	Tokens []string
	// LimitScale multiplies the time in which 100 calls may be made: 0 means 1, negative switches the limit off.
	LimitScale float64
	// BadToken is how a bad token is answered: "401" when empty, "403", or "200" with the status in the body.
	BadToken string
	// PlainErrors answers what goes wrong with an order with the status that the body names, instead of 200.
	PlainErrors bool
	// ListForm is the form of the list: "data" when empty, "instances" or "attributes" (§4 of the reference).
	ListForm string
	// FullList has the list say all of each instance.
	FullList bool
	// Wrapped puts the detail of an instance into data.
	Wrapped bool
	// NoContent answers a delete with 204.
	NoContent bool
	// NoHostnodes: there is no list of hosts, as if the vendor had taken it away.
	NoHostnodes bool
	// FreshLocations: data centres list what they have, and not what they had.
	FreshLocations bool
	// TextPrices lists prices as strings.
	TextPrices bool
	// RetryAfter is in the header of a 429, in seconds; none when zero.
	RetryAfter int
	// PortsAfter is how long after its start a VM's forwards are shown; 20 seconds when zero, none when negative.
	PortsAfter time.Duration
	// NoPortZero: a port outside has to be one of the host's free ones; none is chosen by it.
	NoPortZero bool
	// StopReleases: a VM that is stopped gives its GPUs back, and pays for its disk only.
	StopReleases bool
	// NoPublicIPs: no host has an address to give away. For instances that are reached at a port which is not theirs to
	// choose, as processes on one machine are.
	NoPublicIPs bool
	// StaleIPs: hosts list an address to give away and have none.
	StaleIPs bool
}

const (
	account      = "tensordock"
	callsAllowed = 100
	defaultLate  = 20 * time.Second
)

// Server is the façade. Serve it from a real HTTP server: faults cut connections.
type Server struct {
	market   *market.Market
	opts     Options
	throttle *market.Throttle
	mux      *http.ServeMux

	mu sync.Mutex
	// seen are the machines that were ever on sale: a data centre goes on listing them.
	seen  map[string]market.Offer
	order []string
}

// InstanceID spells the nth instance as the vendor does. It is for market.Config.InstanceID.
func InstanceID(n int64) string { return fmt.Sprintf("468b0000-0000-4000-8000-%012x", n) }

// New puts TensorDock's API in front of a market.
func New(m *market.Market, o Options) *Server {
	if o.PortsAfter == 0 {
		o.PortsAfter = defaultLate
	}
	s := &Server{
		market: m, opts: o, throttle: market.NewThrottle(m.Clock(), o.LimitScale), mux: http.NewServeMux(),
		seen: map[string]market.Offer{},
	}
	for pattern, e := range map[string]endpoint{
		"GET /api/v2/locations":            {op: market.OpSearch, public: true, serve: s.locations},
		"GET /api/v2/hostnodes":            {op: market.OpSearch, serve: s.hostnodes},
		"GET /api/v2/hostnodes/{id}":       {op: market.OpSearch, serve: s.hostnode},
		"GET /api/v2/instances":            {op: market.OpList, serve: s.list},
		"POST /api/v2/instances":           {op: market.OpCreate, serve: s.create},
		"GET /api/v2/instances/{id}":       {op: market.OpGet, serve: s.show},
		"DELETE /api/v2/instances/{id}":    {op: market.OpDestroy, serve: s.destroy},
		"POST /api/v2/instances/{id}/stop": {op: market.OpUpdate, serve: s.stop},
	} {
		if o.NoHostnodes && strings.Contains(pattern, "hostnodes") {
			continue
		}
		s.mux.Handle(pattern, s.guard(e))
	}
	return s
}

// Account is the market account that Options.Tokens open.
func (s *Server) Account() string { return account }

// endpoint is one call.
type endpoint struct {
	op market.Op
	// public serves without a token.
	public bool
	serve  func(w http.ResponseWriter, r *http.Request)
}

// ServeHTTP serves the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) guard(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !e.public && !s.opens(r) {
			s.badToken(w)
			return
		}
		if !s.throttle.Window(account, callsAllowed, time.Minute) {
			s.tooMany(w)
			return
		}
		s.market.WithFaults(http.HandlerFunc(e.serve),
			func(*http.Request) market.Op { return e.op },
			func(w http.ResponseWriter, _ *http.Request, f market.Fault) { s.renderFault(w, f) },
		).ServeHTTP(w, r)
	})
}

// opens reads the bearer token. The query parameters of old clients open nothing here.
func (s *Server) opens(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, t := range s.opts.Tokens {
		ok = ok && t != ""
		if ok && t == token {
			return true
		}
	}
	return false
}

func (s *Server) badToken(w http.ResponseWriter) {
	switch s.opts.BadToken {
	case "200":
		reply(w, http.StatusOK, object{"error": "Unauthorized", "status": http.StatusUnauthorized})
	case "403":
		reply(w, http.StatusForbidden, object{"error": "Forbidden", "status": http.StatusForbidden})
	default:
		reply(w, http.StatusUnauthorized, object{"error": "Unauthorized", "status": http.StatusUnauthorized})
	}
}

func (s *Server) tooMany(w http.ResponseWriter) {
	if s.opts.RetryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(s.opts.RetryAfter))
	}
	reply(w, http.StatusTooManyRequests, object{"error": "Too many requests", "status": http.StatusTooManyRequests})
}

func (s *Server) renderFault(w http.ResponseWriter, f market.Fault) {
	if f == market.TooMany {
		s.tooMany(w)
		return
	}
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = w.Write([]byte("<html><body><h1>502 Bad Gateway</h1></body></html>\n")) // The proxy's page, not the API's.
}
