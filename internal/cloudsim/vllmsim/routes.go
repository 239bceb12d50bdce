package vllmsim

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
)

// maxBody bounds a request body; vLLM has no bound, a simulator for tests must.
const maxBody = 64 << 20

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	routes := []struct {
		path    string
		methods string
		handle  http.HandlerFunc
	}{
		{"/health", "GET", s.health},
		{"/ping", "GET POST", s.health},
		{"/version", "GET", s.version},
		{"/metrics", "GET", s.metrics},
		{"/load", "GET", s.load},
		{"/v1/models", "GET", s.models},
		{"/v1/chat/completions", "POST", s.chatCompletions},
		{"/v1/completions", "POST", s.completions},
		{"/v1/embeddings", "POST", s.embeddings},
		{"/tokenize", "POST", s.tokenize},
	}
	for _, route := range routes {
		mux.HandleFunc(route.path, func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(route.methods, r.Method) {
				w.Header().Set("Allow", strings.ReplaceAll(route.methods, " ", ", "))
				writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
				return
			}
			route.handle(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	})
	return s.front(mux)
}

// front is what every request passes: the refused port, the key, the counts
// and the access log.
func (s *Server) front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if phase := s.lifecycle().Phase; phase != PhaseServing && phase != PhaseDead {
			panic(http.ErrAbortHandler)
		}
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		recorder := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		defer func() { s.count(r, recorder.status) }()
		if strings.HasPrefix(r.URL.Path, "/v1") && !s.authorized(r) {
			writeJSON(recorder, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		r.Body = http.MaxBytesReader(recorder, r.Body, maxBody)
		next.ServeHTTP(recorder, r)
	})
}

func (s *Server) authorized(r *http.Request) bool {
	if s.failingNow(FailUnauthorized) {
		return false
	}
	if len(s.cfg.APIKeys) == 0 {
		return true
	}
	given, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(given))
	matched := 0
	for _, key := range s.cfg.APIKeys {
		want := sha256.Sum256([]byte(key))
		matched |= subtle.ConstantTimeCompare(sum[:], want[:])
	}
	return bearer && matched == 1
}

// statusRecorder remembers the status for the counts; Unwrap keeps flushing
// and the other abilities of the writer.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the status.
func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (s *Server) count(r *http.Request, status int) {
	handler := r.Pattern
	if handler == "" || handler == "/" {
		handler = "none"
	}
	s.logf(`INFO:     %s - "%s %s HTTP/1.1" %d %s`, r.RemoteAddr, r.Method, r.URL.Path, status, http.StatusText(status))
	labels := fmt.Sprintf(`handler=%q,method=%s,status="%dxx"`, handler, quoteLabel(r.Method), status/100)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[string]float64{}
	}
	s.counts[labels]++
}

type httpCount struct {
	labels string
	count  float64
}

func (s *Server) httpCounts() []httpCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]httpCount, 0, len(s.counts))
	for labels, count := range s.counts {
		list = append(list, httpCount{labels, count})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].labels < list[j].labels })
	return list
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	dead, _ := s.deadSince()
	if dead || s.failingNow(FailUnhealthy) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": s.cfg.Version})
}

func (s *Server) load(w http.ResponseWriter, _ *http.Request) {
	var load int
	if s.cfg.TrackLoad {
		status := s.Status()
		load = status.Running + status.Waiting
	}
	writeJSON(w, http.StatusOK, map[string]int{"server_load": load})
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	// A client that went away is its own affair.
	_, _ = io.WriteString(w, s.renderMetrics())
}

type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
	Permission  []any   `json:"permission"`
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	created := s.started.Add(s.cfg.LoadTime).Unix()
	var cards []modelCard
	for _, name := range s.cfg.ServedNames {
		cards = append(cards, modelCard{ID: name, Object: "model", Created: created, OwnedBy: "vllm",
			Root: s.cfg.Model, MaxModelLen: &s.cfg.MaxModelLen, Permission: []any{}})
	}
	for _, lora := range s.cfg.LoRAs {
		cards = append(cards, modelCard{ID: lora.Name, Object: "model", Created: created, OwnedBy: "vllm",
			Root: lora.Path, Parent: &s.cfg.ServedNames[0], Permission: []any{}})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": cards})
}

// modelName returns the name an answer carries: the first served name for any
// name of the base model, or the adapter's own.
func (s *Server) modelName(asked string) (string, bool) {
	if asked == "" {
		return s.cfg.ServedNames[0], true
	}
	for _, name := range s.cfg.ServedNames {
		if name == asked {
			return s.cfg.ServedNames[0], true
		}
	}
	for _, lora := range s.cfg.LoRAs {
		if lora.Name == asked {
			return asked, true
		}
	}
	return "", false
}

// writeJSON writes value as FastAPI does: compact, unescaped, no final newline.
func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(marshal(value))
}

// marshal encodes values of this package, which cannot fail.
func marshal(value any) []byte {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(fmt.Sprintf("vllmsim: encode %T: %v", value, err))
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
