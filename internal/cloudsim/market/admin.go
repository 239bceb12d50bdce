package market

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
)

// AdminHandler serves the market's own view to people and auditors: GET /sim/books (with ?series=0 without the history),
// GET /sim/instances, GET /sim/offers, POST /sim/reclaim/{id}, POST /sim/kill/{id}, and /sim/faults, where POST takes
// {"op": "create", "fault": "lost-answer", "times": 1} and DELETE forgets what was asked. No secret of a tenant or an
// instance is in any answer. It has no authentication: serve it on loopback, apart from the façade.
func (m *Market) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/books", func(w http.ResponseWriter, r *http.Request) {
		b := m.Books()
		if r.URL.Query().Get("series") == "0" {
			b.Series = nil
		}
		answer(w, http.StatusOK, b)
	})
	mux.HandleFunc("GET /sim/instances", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"instances": m.Books().Live()})
	})
	mux.HandleFunc("GET /sim/offers", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"offers": m.Offers()})
	})
	mux.HandleFunc("POST /sim/reclaim/{id}", m.onInstance(m.Reclaim))
	mux.HandleFunc("POST /sim/kill/{id}", m.onInstance(m.Kill))
	mux.HandleFunc("GET /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"asked": m.faults.asked, "share": m.cfg.Faults.Share, "faults": AllFaults()})
	})
	mux.HandleFunc("POST /sim/faults", m.askFaults)
	mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		m.ClearFaults()
		answer(w, http.StatusOK, map[string]any{"asked": map[Op][]Fault{}})
	})
	return mux
}

func (m *Market) onInstance(do func(id string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := do(r.PathValue("id"))
		if refused := (*Error)(nil); errors.As(err, &refused) {
			answer(w, http.StatusNotFound, map[string]any{"error": refused.Code, "message": refused.Message})
			return
		}
		answer(w, http.StatusOK, map[string]any{"ok": true})
	}
}

func (m *Market) askFaults(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Op    Op    `json:"op"`
		Fault Fault `json:"fault"`
		Times int   `json:"times"`
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<12))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	if !slices.Contains(AllFaults(), q.Fault) || q.Op == "" || q.Times > 1000 {
		answer(w, http.StatusBadRequest, map[string]any{"error": "op, a known fault and times up to 1000", "faults": AllFaults()})
		return
	}
	for range max(1, q.Times) {
		m.FailNext(q.Op, q.Fault)
	}
	answer(w, http.StatusOK, map[string]any{"ok": true})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // The client has left, or the value cannot be encoded, which the tests exclude.
}
