package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/munhq/gpuscale/internal/gateway/registry"
)

// apiError is an error of the gateway's own in OpenAI's shape.
type apiError struct {
	status     int
	retryAfter time.Duration

	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// Error returns the message.
func (e *apiError) Error() string { return e.Message }

func (e *apiError) body() any { return map[string]*apiError{"error": e} }

const (
	typeInvalid = "invalid_request_error"
	typeServer  = "server_error"
	typeLimit   = "rate_limit_error"

	retrySoon = 2 * time.Second
)

var modelParam = "model"

func invalid(status int, code, format string, args ...any) *apiError {
	return &apiError{status: status, Type: typeInvalid, Code: code, Message: fmt.Sprintf(format, args...)}
}

func unavailable(after time.Duration, code, format string, args ...any) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, retryAfter: after, Type: typeServer, Code: code,
		Message: fmt.Sprintf(format, args...)}
}

// tooMany is for want of room: the client is to wait and ask again, which OpenAI's libraries do by themselves.
func tooMany(after time.Duration, format string, args ...any) *apiError {
	return &apiError{status: http.StatusTooManyRequests, retryAfter: after, Type: typeLimit, Code: "worker_busy",
		Message: fmt.Sprintf(format, args...)}
}

// keyBusy is for a key that has as many requests under way as it may.
func keyBusy(limit int64) *apiError {
	return &apiError{status: http.StatusTooManyRequests, retryAfter: retrySoon, Type: typeLimit, Code: "concurrency_limit",
		Message: fmt.Sprintf("This API key has %d requests under way, as many as it may.", limit)}
}

func noSuchPath() *apiError {
	return invalid(http.StatusNotFound, "not_found", "There is no such path here. See GET /v1/models, and POST "+
		"/v1/chat/completions, /v1/completions and /v1/embeddings.")
}

func badMethod(method string) *apiError {
	return invalid(http.StatusMethodNotAllowed, "method_not_allowed", "This path does not take the method %q.", method)
}

func badKey() *apiError {
	return invalid(http.StatusUnauthorized, "invalid_api_key",
		"The API key is missing or wrong. Send it as \"Authorization: Bearer <key>\".")
}

func tooLarge(limit int64) *apiError {
	return invalid(http.StatusRequestEntityTooLarge, "request_too_large", "The request's body is over %d bytes.", limit)
}

func noModelNamed() *apiError {
	e := invalid(http.StatusBadRequest, "missing_model", "The request names no model, and there is no default for it.")
	e.Param = &modelParam
	return e
}

func noSuchModel(name string) *apiError {
	const most = 200
	if len(name) > most {
		name = name[:most] + "…"
	}
	e := invalid(http.StatusNotFound, "model_not_found", "The model %q does not exist. GET /v1/models lists those that do.", name)
	e.Param = &modelParam
	return e
}

// notReady is for a request that does not wait: none does, or nothing would come of it.
func notReady(m registry.Model, after time.Duration, waits bool) *apiError {
	var e *apiError
	switch {
	case m.Stage != "":
		e = unavailable(after, "model_not_ready", "The model %q is not ready yet (%s). Try again then.", m.Name, m.Stage)
	case waits:
		e = unavailable(after, "model_not_ready", "The model %q is at zero: no machine runs it. A pod that asks for it wakes "+
			"it; a request does not, since this gateway has no Redis to say so in.", m.Name)
	default:
		e = unavailable(after, "model_not_ready", "The model %q is at zero: no machine runs it, and this gateway lets no "+
			"request wait until one does.", m.Name)
	}
	e.Param = &modelParam
	return e
}

func starting() *apiError {
	return unavailable(retrySoon, "starting", "The gateway has only just started and does not know the models yet.")
}

func cutOff() *apiError {
	return unavailable(retrySoon, codeShuttingDown, "The gateway is shutting down.")
}

func workerLost() *apiError {
	return &apiError{status: http.StatusBadGateway, retryAfter: retrySoon, Type: typeServer, Code: "worker_lost",
		Message: "The worker was lost before the answer was complete."}
}

func streamCut() *apiError {
	return &apiError{status: http.StatusBadGateway, Type: typeServer, Code: "stream_cut",
		Message: "The engine ended the stream before the answer was complete."}
}

// write answers with e.
func write(w http.ResponseWriter, e *apiError) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(e.retryAfter.Seconds())))
	}
	writeJSON(w, e.status, e.body())
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	// A client that went away is its own affair.
	_, _ = w.Write(text)
}

// answerError ends a request that no worker answered. A client that left gets nothing.
func answerError(w http.ResponseWriter, err error) {
	var e *apiError
	if errors.As(err, &e) {
		write(w, e)
		return
	}
	w.WriteHeader(statusClientGone)
}
