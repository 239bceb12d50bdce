package verda

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// object is a JSON object on the wire.
type object = map[string]any

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // A client that has left is its own affair.
}

func fail(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, object{"code": code, "message": message})
}

func invalid(w http.ResponseWriter, message string) {
	fail(w, http.StatusBadRequest, "invalid_request", message)
}

// created answers with an id in the form that the façade is told to give.
func (s *Server) created(w http.ResponseWriter, status int, id string) {
	switch s.opts.IDForm {
	case "json":
		reply(w, status, id)
	case "object":
		reply(w, status, object{"id": id})
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, id) // As above.
	}
}

// price is text, or a number where the façade is told so.
func (s *Server) price(n market.Nano) any {
	text := strconv.FormatFloat(float64(n)/float64(market.Nano1), 'f', -1, 64)
	if s.opts.PricesAsNumbers {
		return json.Number(text)
	}
	return text
}

const maxBody = 1 << 20

// read decodes a request into a struct that has all fields that may be sent.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("more than one value")
	}
	if err != nil {
		invalid(w, "request body: "+err.Error())
	}
	return err == nil
}
