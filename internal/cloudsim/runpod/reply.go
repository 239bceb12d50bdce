package runpod

import (
	"encoding/json"
	"net/http"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// object is a JSON object on the wire.
type object = map[string]any

func reply(w http.ResponseWriter, status int, v any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // A client that has left is its own affair.
}

// fail answers with a problem; errors are the single failures of a 422.
func fail(w http.ResponseWriter, status int, detail string, errors ...string) {
	w.Header().Set("Content-Type", "application/problem+json")
	body := object{"title": http.StatusText(status), "status": status, "detail": detail}
	if len(errors) > 0 {
		body["errors"] = errors
	}
	reply(w, status, body)
}

// page is what the proxy in front answers.
func page(w http.ResponseWriter, status int, title string) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	_, _ = w.Write([]byte("<html><body><h1>" + title + "</h1></body></html>\n")) // A client that has left is its own affair.
}

// dollars is a price on the wire.
func (s *Server) dollars(n market.Nano) any {
	if s.opts.PriceText {
		return n.String()
	}
	return n.Dollars()
}
