package vastai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// object is a JSON object on the wire.
type object = map[string]any

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // A client that has left is its own affair.
}

func (s *Server) fail(w http.ResponseWriter, status int, slug, msg string) {
	s.refuse(w, status, object{"success": false, "error": slug, "msg": msg})
}

// refuse answers with an error in the form that the façade is told to use; the documented one has a slug and a message.
// What others leave of it is the message, with the slug in it as in the vendor's own "error 404/3603: no_such_ask …".
func (s *Server) refuse(w http.ResponseWriter, status int, body object) {
	slug, _ := body["error"].(string)
	msg, _ := body["msg"].(string)
	if !strings.Contains(msg, slug) {
		msg = fmt.Sprintf("error %d/3600: %s %s", status, slug, msg)
	}
	switch s.opts.ErrorForm {
	case "text":
		if body["new_contract"] == nil {
			http.Error(w, msg, status)
			return
		}
		fallthrough // an instance is named in JSON only
	case "message":
		delete(body, "error")
		body["msg"] = msg
	}
	reply(w, status, body)
}

func success(w http.ResponseWriter) { reply(w, http.StatusOK, object{"success": true}) }

const maxBody = 1 << 20

// readObject reads a JSON object; an absent body is an empty one.
func readObject(w http.ResponseWriter, r *http.Request) (object, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if len(raw) == 0 {
		return object{}, nil
	}
	var out object
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, err
	}
	if out == nil {
		return nil, errors.New("null is not an object")
	}
	return out, nil
}

// instanceID reads the id in the path, which must be a number.
func (s *Server) instanceID(w http.ResponseWriter, r *http.Request) (string, bool) {
	id := r.PathValue("id")
	if _, err := strconv.ParseInt(id, 10, 64); err != nil {
		s.fail(w, http.StatusBadRequest, "invalid_args", "invalid instance_id")
		return "", false
	}
	return id, true
}

// refused puts a market's refusal about an instance into the vendor's words.
func (s *Server) refused(w http.ResponseWriter, id string, err error) {
	var e *market.Error
	if !errors.As(err, &e) {
		s.fail(w, http.StatusInternalServerError, "server_error", "internal error")
		return
	}
	switch e.Code {
	case market.NoSuchInstance:
		s.fail(w, http.StatusNotFound, "no_such_instance", fmt.Sprintf("Instance with id %s does not exist.", id))
	case market.Refused:
		s.fail(w, http.StatusInternalServerError, "server_error", e.Message)
	case market.NoSuchOffer, market.NoCapacity, market.BidTooLow, market.NotForSale, market.DiskTooLarge,
		market.OverQuota, market.NoBalance, market.ContractOver:
		s.fail(w, http.StatusBadRequest, "invalid_args", e.Message)
	}
}
