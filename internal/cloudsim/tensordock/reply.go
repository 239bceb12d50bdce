package tensordock

import (
	"encoding/json"
	"net/http"
)

// object is a JSON object on the wire.
type object = map[string]any

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // A client that has left is its own affair.
}

// fail refuses an order, or what is asked of an instance: with status 200, unless the façade is told otherwise.
func (s *Server) fail(w http.ResponseWriter, status int, text string) {
	code := http.StatusOK
	if s.opts.PlainErrors {
		code = status
	}
	reply(w, code, object{"error": text, "status": status})
}

// notFound is always under its own status.
func notFound(w http.ResponseWriter) {
	reply(w, http.StatusNotFound, object{"error": "Instance not found", "status": http.StatusNotFound})
}

// complaint is what the vendor's validator says of one value.
type complaint struct {
	code, message string
	path          []string
}

func complain(w http.ResponseWriter, all []complaint) {
	out := make([]object, len(all))
	for i, c := range all {
		out[i] = object{"code": c.code, "message": c.message, "path": c.path}
	}
	reply(w, http.StatusBadRequest, out)
}
