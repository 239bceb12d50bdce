package agent

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/pki"
)

const (
	// maxControlBody bounds the body of a controller's call, controlBodyTimeout the time that it may take to arrive.
	maxControlBody     = 1 << 20
	controlBodyTimeout = 30 * time.Second
)

// route is one method and path, and who may call it.
type route struct {
	method, path string
	roles        []string
	handle       http.HandlerFunc
}

func (a *Agent) table() []route {
	controller := []string{agentapi.RoleController}
	both := []string{agentapi.RoleController, agentapi.RoleGateway}
	routes := []route{
		{http.MethodPut, agentapi.PathModels, controller, a.putModels},
		{http.MethodPost, agentapi.PathDrain, controller, a.postDrain},
		{http.MethodGet, agentapi.PathLogs, controller, a.getLogs},
		{http.MethodGet, agentapi.PathStatus, both, func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, a.status())
		}},
		{http.MethodGet, agentapi.PathMetrics, both, a.getMetrics},
		{http.MethodGet, agentapi.PathHealthz, both, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok\n") // A caller that left needs no answer.
		}},
		{http.MethodGet, "/v1/models", both, a.listModels},
	}
	for _, path := range generates {
		routes = append(routes, route{http.MethodPost, path, both, a.generate})
	}
	return routes
}

// routes is everything behind the door. A path is compared as it was sent: nothing is cleaned or redirected, so that
// none gets past the list by spelling.
func (a *Agent) routes() http.Handler {
	table := a.table()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		role := pki.CallerRole(r, a.cfg.Boot.Installation)
		if role == "" {
			openAIError(w, http.StatusForbidden, "no certificate of this installation")
			return
		}
		a.lease.enter()
		defer a.lease.leave()
		var methods []string
		for _, route := range table {
			if route.path != r.URL.Path || r.URL.RawPath != "" {
				continue
			}
			if route.method != r.Method {
				methods = append(methods, route.method)
				continue
			}
			if !slices.Contains(route.roles, role) {
				openAIError(w, http.StatusForbidden, "not for the "+role)
				return
			}
			route.handle(w, r)
			return
		}
		if methods != nil {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			openAIError(w, http.StatusMethodNotAllowed, "method not allowed")
			return
		}
		openAIError(w, http.StatusNotFound, "no such path")
	})
}

func (a *Agent) putModels(w http.ResponseWriter, r *http.Request) {
	var desired agentapi.DesiredModels
	if !readJSON(w, r, &desired) {
		return
	}
	switch err := a.put(desired); {
	case errors.Is(err, errOlder):
		openAIError(w, http.StatusConflict, err.Error())
	case err != nil:
		openAIError(w, http.StatusBadRequest, err.Error())
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (a *Agent) postDrain(w http.ResponseWriter, r *http.Request) {
	var request agentapi.DrainRequest
	if !readJSON(w, r, &request) {
		return
	}
	if !a.drain(request.Model) {
		openAIError(w, http.StatusNotFound, "no such model")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// getLogs is what is kept of the log of ?model's engine, over all its starts.
func (a *Agent) getLogs(w http.ResponseWriter, r *http.Request) {
	model := r.URL.Query().Get("model")
	a.mu.Lock()
	u := a.current(model)
	a.mu.Unlock()
	if u == nil {
		openAIError(w, http.StatusNotFound, "no such model")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, line := range u.log.since(0) {
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			return // The caller left.
		}
	}
}

// readJSON reads a controller's body, answering for itself when it cannot.
func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	control := http.NewResponseController(w)
	// A writer without deadlines is a test's.
	_ = control.SetReadDeadline(soon(controlBodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxControlBody))
	if err != nil {
		w.Header().Set("Connection", "close")
		openAIError(w, http.StatusRequestEntityTooLarge, "body is too large or broke off")
		return false
	}
	_ = control.SetReadDeadline(time.Time{})
	// The decoder's error may quote the body, which holds secrets.
	if json.Unmarshal(body, into) != nil {
		openAIError(w, http.StatusBadRequest, "body is not what this path takes")
		return false
	}
	return true
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // A caller that left needs no answer.
}
