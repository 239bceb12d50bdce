package vastai

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Options choose among the behaviours that the vendor has been seen to have. The zero value is the documented one.
type Options struct {
	// Keys open the account. Without any, nothing but the search is served.
	Keys []string
	// Others are the keys of other accounts, each with its account's user number.
	Others map[string]int
	// LimitScale multiplies the shortest times between calls: 0 means 1, negative switches the limits off.
	LimitScale float64
	// BadKeyStatus answers a bad key; 404 when zero, 401 and 403 have been seen.
	BadKeyStatus int
	// GoneStatus answers a create for an offer that is no more: 404 when zero, 400 or 410.
	GoneStatus int
	// FailWith200 answers a refused create with status 200 and success false.
	FailWith200 bool
	// LowBidWith200 answers a create under the minimum bid like a success, with an instance that never starts.
	LowBidWith200 bool
	// ShowAsList answers GET of one instance with a list of one, or of none.
	ShowAsList bool
	// OutbidIntended is the intended_status of an instance that was outbid: "stopped" when empty, or "running".
	OutbidIntended string
	// ErrorForm is what an error's body holds: a slug and a message (JSON, when empty), the "message" alone (JSON), or the
	// message as plain "text".
	ErrorForm string
	// HideFlags leaves docker's flags out of the environment that an instance shows, as the vendor's own example does.
	HideFlags bool
	// AlsoExposed are ports that images publish besides those that were asked for; they lead nowhere.
	AlsoExposed []int
	// NoUserRead is a key without the right to read the user: 403.
	NoUserRead bool
	// RateForm is the body of a 429: "detail" (JSON, when empty), "message" (JSON with a code) or "text".
	RateForm string
	// LogDelay is how long requested logs take to appear; a second when zero, none when negative.
	LogDelay time.Duration
	// LabelIsKey makes the label an idempotency key: a create with the label of an earlier one answers with that one's
	// instance. The vendor has no such thing; tests of what a provider with a key changes ask for it.
	LabelIsKey bool
}

// userID is the number on the wire of the account that Options.Keys open.
const userID = 10001

// accountPrefix begins the market's names of this vendor's accounts; the user number follows.
const accountPrefix = "vast-"

func accountOf(user int) string { return accountPrefix + strconv.Itoa(user) }

// Server is the façade. Serve it from a real HTTP server: faults cut connections.
type Server struct {
	market   *market.Market
	opts     Options
	throttle *market.Throttle
	mux      *http.ServeMux

	mu   sync.Mutex
	logs map[string]logFile
}

// New puts Vast.ai's API in front of a market.
func New(m *market.Market, o Options) *Server {
	if o.BadKeyStatus == 0 {
		o.BadKeyStatus = http.StatusNotFound
	}
	if o.GoneStatus == 0 {
		o.GoneStatus = http.StatusNotFound
	}
	if o.OutbidIntended == "" {
		o.OutbidIntended = "stopped"
	}
	if o.LogDelay == 0 {
		o.LogDelay = time.Second
	}
	s := &Server{
		market: m, opts: o, throttle: market.NewThrottle(m.Clock(), o.LimitScale), mux: http.NewServeMux(),
		logs: map[string]logFile{},
	}
	s.routes()
	return s
}

// Account is the market account that Options.Keys open.
func (s *Server) Account() string { return accountOf(userID) }

// endpoint is one call: who may make it, how often, and what may go wrong with it.
type endpoint struct {
	name string
	op   market.Op
	// anonymous serves without a key; own serves an instance's key for its own instance too.
	anonymous, own bool
	// pause and penalty are the vendor's minimum seconds between calls; a window counts calls instead.
	pause, penalty time.Duration
	window         int
	serve          func(w http.ResponseWriter, r *http.Request, c caller)
}

const sec = time.Second

func (s *Server) routes() {
	search := endpoint{name: "search", op: market.OpSearch, anonymous: true, window: 10}
	update := endpoint{name: "instance-put", op: market.OpUpdate, own: true, pause: sec}
	for pattern, e := range map[string]endpoint{
		"POST /api/v0/bundles/{$}":                    search.with(s.searchBundles),
		"GET /api/v0/bundles/{$}":                     search.with(s.searchQuery),
		"PUT /api/v0/search/asks/{$}":                 search.with(s.searchAsks),
		"GET /api/v0/gpu_names/unique/{$}":            search.with(s.gpuNames),
		"PUT /api/v0/asks/{id}/{$}":                   {name: "create", op: market.OpCreate, pause: 4500 * time.Millisecond, penalty: 12 * sec, serve: s.create},
		"GET /api/v0/instances/{$}":                   {name: "list-v0", op: market.OpList, pause: sec, serve: s.listV0},
		"GET /api/v1/instances/{$}":                   {name: "list", op: market.OpList, pause: sec, serve: s.list},
		"GET /api/v0/instances/{id}/{$}":              {name: "show", op: market.OpGet, pause: 2 * sec, serve: s.show},
		"DELETE /api/v0/instances/{id}/{$}":           {name: "destroy", op: market.OpDestroy, own: true, pause: 3 * sec, serve: s.destroy},
		"PUT /api/v0/instances/{id}/{$}":              update.with(s.manage),
		"PUT /api/v0/instances/reboot/{id}/{$}":       {name: "reboot", op: market.OpUpdate, pause: sec, serve: s.reboot},
		"PUT /api/v0/instances/bid_price/{id}/{$}":    {name: "bid", op: market.OpUpdate, pause: 5500 * time.Millisecond, serve: s.changeBid},
		"PUT /api/v0/instances/request_logs/{id}/{$}": {name: "logs", op: market.OpLogs, pause: sec, serve: s.requestLogs},
		"GET /api/v0/charges/{$}":                     {name: "charges", op: market.OpAccount, pause: sec, serve: s.charges},
		"GET /api/v0/users/current/{$}":               {name: "user", op: market.OpAccount, pause: sec, serve: s.user},
	} {
		s.mux.Handle(pattern, s.guard(e))
	}
	s.mux.HandleFunc("GET /instance_logs/{name}", s.serveLog)
}

func (e endpoint) with(serve func(http.ResponseWriter, *http.Request, caller)) endpoint {
	e.serve = serve
	return e
}

// ServeHTTP redirects a path without its slash, as the vendor's server does, with a status that makes clients drop the
// method and body of what they sent.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasSuffix(r.URL.Path, "/") {
		to := url.URL{Path: r.URL.Path + "/", RawQuery: r.URL.RawQuery}
		http.Redirect(w, r, to.String(), http.StatusMovedPermanently)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// caller is who asks: the account, or one of its instances.
type caller struct {
	account  string
	instance string // set when the key is an instance's own
	identity string
}

// by is the market's word for who ended an instance.
func (c caller) by() string {
	if c.instance != "" {
		return "instance"
	}
	return "tenant"
}

func (s *Server) guard(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := keyOf(r)
		c, ok := s.identify(key)
		switch {
		case key == "" && e.anonymous:
			c = caller{identity: "nobody"}
		case !ok:
			s.fail(w, s.opts.BadKeyStatus, "auth_error", "Invalid user key")
			return
		case c.instance != "" && (!e.own || c.instance != r.PathValue("id")):
			s.fail(w, http.StatusForbidden, "not_authorized", "This key may only manage its own instance")
			return
		}
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		if !s.admit(e, c.identity+"@"+host) {
			s.tooMany(w, e)
			return
		}
		s.market.WithFaults(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.serve(w, r, c) }),
			func(*http.Request) market.Op { return e.op },
			func(w http.ResponseWriter, _ *http.Request, f market.Fault) { s.renderFault(w, e, f) },
		).ServeHTTP(w, r)
	})
}

func (s *Server) admit(e endpoint, who string) bool {
	if e.window > 0 {
		return s.throttle.Window(e.name+" "+who, e.window, time.Minute)
	}
	return s.throttle.Spaced(e.name+" "+who, e.pause, e.penalty)
}

func (s *Server) renderFault(w http.ResponseWriter, e endpoint, f market.Fault) {
	if f == market.TooMany {
		s.tooMany(w, e)
		return
	}
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = w.Write([]byte("<html><body><h1>502 Bad Gateway</h1></body></html>\n")) // The proxy's page, not the API's.
}

func (s *Server) tooMany(w http.ResponseWriter, e endpoint) {
	pause := e.pause
	if e.window > 0 {
		pause = time.Minute / time.Duration(e.window)
	}
	text := fmt.Sprintf("API requests too frequent endpoint threshold=%.1f", pause.Seconds())
	switch s.opts.RateForm {
	case "text":
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(strings.Replace(text, "frequent endpoint", "frequent: endpoint", 1)))
	case "message":
		reply(w, http.StatusTooManyRequests, map[string]any{"message": text, "code": 429})
	default:
		reply(w, http.StatusTooManyRequests, map[string]any{"detail": text})
	}
}

// keyOf reads the bearer token, or the query parameter of old clients.
func keyOf(r *http.Request) string {
	if t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return strings.TrimSpace(t)
	}
	return r.URL.Query().Get("api_key")
}

func (s *Server) identify(key string) (caller, bool) {
	if key == "" {
		return caller{}, false
	}
	for i, k := range s.opts.Keys {
		if k == key {
			return caller{account: accountOf(userID), identity: fmt.Sprintf("key-%d", i)}, true
		}
	}
	if user, ok := s.opts.Others[key]; ok {
		return caller{account: accountOf(user), identity: "other-" + key}, true
	}
	if in, ok := s.market.ByKey(key); ok && strings.HasPrefix(in.Account, accountPrefix) {
		return caller{account: in.Account, instance: in.ID, identity: "instance-" + in.ID}, true
	}
	return caller{}, false
}
