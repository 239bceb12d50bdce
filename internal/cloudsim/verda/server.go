package verda

import (
	"crypto/rand"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Options choose among the behaviours that the vendor has been seen to have. The zero value is the documented one.
type Options struct {
	// Clients are the secrets by client id; all open the one account.
	Clients map[string]string
	// TokenLife is how long a token opens the API; an hour when zero.
	TokenLife time.Duration
	// FormTokens refuses a JSON body for a token: the grant has to be a form.
	FormTokens bool
	// PricesAsNumbers gives prices as JSON numbers.
	PricesAsNumbers bool
	// IDForm is how a new id is answered: "text" (plain, when empty), "json" (a string) or "object".
	IDForm string
	// CreateStatus answers a create: 202 when zero, or 201.
	CreateStatus int
	// OldSpotFlag reads the availability's flag as isSpot, and not as is_spot.
	OldSpotFlag bool
	// NotFoundIs400 answers an instance that is not known with status 400 and "Invalid instance id".
	NotFoundIs400 bool
	// NoCapacityCode is the code of the answer when there is no stock: invalid_request when empty.
	NoCapacityCode string
	// Vanishes drops a spot instance that was taken back from the list, in place of showing it as discontinued.
	Vanishes bool
	// TrashAnyway moves deleted volumes to the trash though they are to go for good.
	TrashAnyway bool
	// DeleteWhileProvisioning accepts a delete at any time.
	DeleteWhileProvisioning bool
	// DeleteStatus answers a delete: 202 with an account of it when zero, or 204.
	DeleteStatus int
}

// account is the market's name of the one account.
const account = "verda"

// Server is the façade. Serve it from a real HTTP server: faults cut connections.
type Server struct {
	market *market.Market
	opts   Options
	mux    *http.ServeMux

	mu      sync.Mutex
	tokens  map[string]time.Time // until when each is good
	keys    map[string]sshKey
	scripts map[string]script
	volumes map[string]*volume
	order   []string // of volumes
	deleted map[string]bool
	seen    []string // the market's offers, whether or not on sale
	refused int      // deletes still to refuse
}

// New puts Verda's API in front of a market. The market should show instances for a time after their end
// (market.Config.Afterlife), or they vanish.
func New(m *market.Market, o Options) *Server {
	if o.TokenLife == 0 {
		o.TokenLife = time.Hour
	}
	if o.CreateStatus == 0 {
		o.CreateStatus = http.StatusAccepted
	}
	if o.DeleteStatus == 0 {
		o.DeleteStatus = http.StatusAccepted
	}
	if o.NoCapacityCode == "" {
		o.NoCapacityCode = "invalid_request"
	}
	s := &Server{market: m, opts: o, mux: http.NewServeMux(), tokens: map[string]time.Time{}, keys: map[string]sshKey{},
		scripts: map[string]script{}, volumes: map[string]*volume{}, deleted: map[string]bool{}}
	s.routes()
	return s
}

// Account is the market account of all clients.
func (s *Server) Account() string { return account }

// RefuseDeletes has the next n deletes refused in the words for an instance that is still being provisioned.
func (s *Server) RefuseDeletes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = n
}

func (s *Server) routes() {
	s.mux.HandleFunc("POST /oauth2/token", s.token)
	for pattern, e := range map[string]struct {
		op    market.Op
		serve http.HandlerFunc
	}{
		"GET /balance":               {market.OpAccount, s.balance},
		"GET /instance-types":        {market.OpSearch, s.types},
		"GET /instance-availability": {market.OpSearch, s.availability},
		"GET /locations":             {market.OpSearch, s.locations},
		"GET /volume-types":          {market.OpSearch, s.volumeTypes},
		"GET /instances":             {market.OpList, s.list},
		"POST /instances":            {market.OpCreate, s.create},
		"PUT /instances":             {market.OpDestroy, s.act},
		"GET /instances/{id}":        {market.OpGet, s.get},
		"GET /scripts":               {"scripts", s.listScripts},
		"POST /scripts":              {"scripts", s.addScript},
		"GET /scripts/{id}":          {"scripts", s.getScript},
		"DELETE /scripts/{id}":       {"scripts", s.removeScript},
		"GET /ssh-keys":              {"ssh-keys", s.listKeys},
		"POST /ssh-keys":             {"ssh-keys", s.addKey},
		"GET /volumes":               {"volumes", s.listVolumes},
		"GET /volumes/trash":         {"volumes", s.listTrash},
		"DELETE /volumes/{id}":       {"volumes", s.removeVolume},
	} {
		faulty := s.market.WithFaults(e.serve, func(*http.Request) market.Op { return e.op }, renderFault)
		s.mux.Handle(pattern, s.guard(faulty))
	}
}

func renderFault(w http.ResponseWriter, _ *http.Request, f market.Fault) {
	if f == market.TooMany {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusTooManyRequests, "too_many_requests", "Too many requests")
		return
	}
	fail(w, http.StatusServiceUnavailable, "service_unavailable", "Service unavailable")
}

// ServeHTTP serves the API at /v1 and at the root.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	http.StripPrefix(prefixOf(r.URL.Path), s.mux).ServeHTTP(w, r)
}

func prefixOf(path string) string {
	if strings.HasPrefix(path, "/v1/") {
		return "/v1"
	}
	return ""
}

// guard lets requests with a good token through.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		until, known := s.tokens[token]
		s.mu.Unlock()
		if !bearer || !known || !s.market.Clock().Now().Before(until) {
			fail(w, http.StatusUnauthorized, "unauthorized_request", "Access token is missing or invalid")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// token is the client-credentials grant, by JSON or by form.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	var grant struct {
		Type   string `json:"grant_type"`
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // Of none it is neither.
	switch {
	case kind == "application/json" && !s.opts.FormTokens:
		if json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&grant) != nil {
			invalid(w, "request body is not JSON")
			return
		}
	case kind == "application/x-www-form-urlencoded" && s.opts.FormTokens:
		grant.Type, grant.ID, grant.Secret = r.PostFormValue("grant_type"), r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	default:
		fail(w, http.StatusUnsupportedMediaType, "invalid_request", "Unsupported content type "+kind)
		return
	}
	if secret, known := s.opts.Clients[grant.ID]; grant.Type != "client_credentials" || !known || secret != grant.Secret {
		fail(w, http.StatusUnauthorized, "unauthorized_request", "Invalid client id or client secret")
		return
	}
	token := rand.Text()
	s.mu.Lock()
	s.tokens[token] = s.market.Clock().Now().Add(s.opts.TokenLife)
	s.mu.Unlock()
	reply(w, http.StatusOK, object{"access_token": token, "token_type": "Bearer", "expires_in": int(s.opts.TokenLife.Seconds()),
		"refresh_token": rand.Text(), "scope": "cloud-api-v1"})
}

// ExpireTokens makes every token that was given useless.
func (s *Server) ExpireTokens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

func (s *Server) balance(w http.ResponseWriter, _ *http.Request) {
	left, limited := s.market.Credit()
	if !limited {
		left = 100 * market.Nano1
	}
	reply(w, http.StatusOK, object{"amount": float64(left) / float64(market.Nano1), "currency": "usd"})
}
