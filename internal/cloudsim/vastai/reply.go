package vastai

import (
	"encoding/json"
	"errors"
	"fmt"
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

func fail(w http.ResponseWriter, status int, slug, msg string) {
	reply(w, status, object{"success": false, "error": slug, "msg": msg})
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
func instanceID(w http.ResponseWriter, r *http.Request) (string, bool) {
	id := r.PathValue("id")
	if _, err := strconv.ParseInt(id, 10, 64); err != nil {
		fail(w, http.StatusBadRequest, "invalid_args", "invalid instance_id")
		return "", false
	}
	return id, true
}

// refused puts a market's refusal about an instance into the vendor's words.
func refused(w http.ResponseWriter, id string, err error) {
	var e *market.Error
	if !errors.As(err, &e) {
		fail(w, http.StatusInternalServerError, "server_error", "internal error")
		return
	}
	switch e.Code {
	case market.NoSuchInstance:
		fail(w, http.StatusNotFound, "no_such_instance", fmt.Sprintf("Instance with id %s does not exist.", id))
	case market.Refused:
		fail(w, http.StatusInternalServerError, "server_error", e.Message)
	case market.NoSuchOffer, market.NoCapacity, market.BidTooLow, market.NotForSale, market.DiskTooLarge,
		market.OverQuota, market.NoBalance, market.ContractOver:
		fail(w, http.StatusBadRequest, "invalid_args", e.Message)
	}
}
