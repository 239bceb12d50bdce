package runpod

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// The vendor's states.
const (
	provisioning = "PROVISIONING"
	starting     = "STARTING"
	running      = "RUNNING"
	exited       = "EXITED"
	failed       = "ERROR"
	terminated   = "TERMINATED"
)

// statusOf is the vendor's word for a state of the market's; a word of a test's own is shown as it is.
func (s *Server) statusOf(in market.Instance) string {
	if s.saysRunning(in.ID) {
		return running
	}
	switch in.State {
	case market.Accepted, market.Created:
		return provisioning
	case market.Loading, market.Rebooting:
		return starting
	case market.Running, market.Frozen, market.Unknown, market.Offline:
		return running // There is no word for a host that is away.
	case market.Stopped:
		return exited
	case market.Exited:
		if in.Starts == 0 {
			return failed
		}
		return exited
	case market.Gone:
		return terminated
	}
	return string(in.State)
}

// SayRunning has a pod called RUNNING without a runtime whatever it does, or ends that.
func (s *Server) SayRunning(id string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early[id] = on
}

func (s *Server) saysRunning(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.early[id]
}

func actions(status string) []string {
	switch status {
	case provisioning, starting:
		return []string{"stop", "terminate"}
	case running:
		return []string{"stop", "restart", "terminate"}
	case exited, failed:
		return []string{"start", "terminate"}
	}
	return []string{}
}

// podRow is a pod on the wire.
func (s *Server) podRow(in market.Instance) object {
	status := s.statusOf(in)
	env := in.Env
	if env == nil {
		env = map[string]string{}
	}
	row := object{
		"id": in.ID, "name": in.Label, "status": status, "actions": actions(status), "image": in.Image,
		"args": in.Extra[extraArgs], "disk": int(in.DiskGB), "mounts": object{}, "ports": portsOf(in), "env": env, "registry": nil,
		"gpu":   object{"id": in.Offer.GPU, "count": in.Offer.GPUs, "vcpuCount": int(in.Offer.EffectiveCores), "memory": in.Offer.RAMMB / 1000},
		"cloud": in.Offer.Extra[extraCloud], "dataCenterId": orNull(in.Offer.Region), "cudaVersion": nil,
		"ssh": object{"proxy": nil, "direct": nil}, "template": nil, "cost": s.cost(in, status), "locked": false,
		"globalNetworking": object{"enabled": false}, "runtime": s.runtime(in, status),
		"createdAt": in.CreatedAt.UTC().Format(time.RFC3339), "startedAt": nil,
	}
	if in.Offer.CUDA > 0 {
		row["cudaVersion"] = version(in.Offer.CUDA)
	}
	if !in.StartedAt.IsZero() {
		row["startedAt"] = in.StartedAt.UTC().Format(time.RFC3339)
	}
	return row
}

func portsOf(in market.Instance) []string {
	out := []string{}
	_ = json.Unmarshal([]byte(in.Extra[extraPorts]), &out) // It was written from strings; of another façade there is none.
	return out
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// cost is 0 for what does not run, though its disk is billed.
func (s *Server) cost(in market.Instance, status string) any {
	if status == exited || status == failed || status == terminated {
		return s.dollars(0)
	}
	if s.opts.CostWithoutDisk {
		return s.dollars(in.GPURate)
	}
	return s.dollars(in.GPURate + in.StorageRate)
}

// runtime comes some time after the start, and the ports as long after it. There is always a row of the vendor's proxy,
// at an address inside its network.
func (s *Server) runtime(in market.Instance, status string) any {
	none := any(nil)
	if s.opts.EmptyRuntime {
		none = object{}
	}
	ended := status == exited || status == failed
	if ended && s.opts.StalePorts && in.Port > 0 && in.Starts > 0 {
		return object{"uptime": 0, "gpus": []object{}, "ports": []object{portRow(in.Port, 31207, "tcp", "203.0.113.9")}}
	}
	up := s.market.Clock().Now().Sub(in.StartedAt)
	if in.State != market.Running || in.StartedAt.IsZero() || up < s.opts.PortLag || s.saysRunning(in.ID) {
		return none
	}
	rows := []object{portRow(19123, 60123, "http", "100.65.3.77")}
	if in.HostPort > 0 && up >= 2*s.opts.PortLag {
		rows = append(rows, portRow(in.Port, 60124, "http", "100.65.3.77"), portRow(in.Port, in.HostPort, "tcp", in.Host))
	} else if in.Port > 0 {
		rows = append(rows, object{"private": in.Port, "public": nil, "type": "tcp", "ip": nil})
	}
	return object{"uptime": int(up.Seconds()), "gpus": []object{}, "ports": rows}
}

func portRow(private, public int, kind, ip string) object {
	return object{"private": private, "public": public, "type": kind, "ip": ip}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, _ caller) {
	if v := r.URL.Query().Get("includeClusterPods"); v != "" && v != "true" && v != "false" {
		fail(w, http.StatusUnprocessableEntity, "includeClusterPods must be a boolean")
		return
	}
	s.revive()
	all := s.market.List(account)
	if s.opts.PageSize <= 0 {
		reply(w, http.StatusOK, object{"pods": s.podRows(all)})
		return
	}
	from := 0
	if cursor := r.URL.Query().Get("cursor"); cursor != "" {
		at := slices.IndexFunc(all, func(in market.Instance) bool { return "after-"+in.ID == cursor })
		if at < 0 {
			fail(w, http.StatusBadRequest, "cursor is invalid")
			return
		}
		from = at + 1
	}
	to := min(from+s.opts.PageSize, len(all))
	pagination := object{"hasNextPage": to < len(all), "nextCursor": nil}
	if to < len(all) {
		pagination["nextCursor"] = "after-" + all[to-1].ID
	}
	reply(w, http.StatusOK, object{"pods": s.podRows(all[from:to]), "pagination": pagination})
}

func (s *Server) podRows(all []market.Instance) []object {
	rows := make([]object, 0, len(all))
	for _, in := range all {
		rows = append(rows, s.podRow(in))
	}
	return rows
}

// revive starts again what has ended by itself, where the façade is told to.
func (s *Server) revive() {
	if !s.opts.RestartExited {
		return
	}
	for _, in := range s.market.List(account) {
		if in.State == market.Exited && in.Starts > 0 {
			_ = s.market.Start(account, in.ID) // It may have been ended meanwhile.
		}
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, _ caller) {
	s.revive()
	in, err := s.market.Get(account, r.PathValue("id"))
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusOK, s.podRow(in))
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request, c caller) {
	if err := s.end(r.PathValue("id"), c); err != nil {
		refuse(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) end(id string, c caller) error {
	in, err := s.market.Get(account, id)
	switch {
	case err != nil && s.opts.HiddenDelete:
		return err
	case err == nil && s.opts.BusyUntilRunning && (in.State == market.Accepted || in.State == market.Created || in.State == market.Loading):
		return &market.Error{Code: market.Refused, Message: "pod is busy"}
	}
	return s.market.Destroy(account, id, c.by())
}

// act is the other way to end a pod, and the way to stop, start and restart one.
func (s *Server) act(w http.ResponseWriter, r *http.Request, c caller) {
	var body struct {
		Action string `json:"action"`
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if d.Decode(&body) != nil || !slices.Contains([]string{"start", "stop", "restart", "terminate"}, body.Action) {
		fail(w, http.StatusUnprocessableEntity, "Request validation failed.", "$.action: value must be one of 'start', 'stop', 'restart', 'terminate'")
		return
	}
	id := r.PathValue("id")
	in, err := s.market.Get(account, id)
	switch {
	case err != nil:
	case !slices.Contains(actions(s.statusOf(in)), body.Action):
		err = &market.Error{Code: market.Refused, Message: "action " + body.Action + " is not valid for the pod's status"}
	case body.Action == "terminate":
		if err = s.end(id, c); err == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
	case body.Action == "stop":
		err = s.market.Stop(account, id)
	case body.Action == "start":
		err = s.market.Start(account, id)
	default:
		err = s.market.Reboot(account, id)
	}
	if err == nil {
		in, err = s.market.Get(account, id)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusOK, s.podRow(in))
}

// refuse puts a market's refusal about a pod into the vendor's words.
func refuse(w http.ResponseWriter, err error) {
	var e *market.Error
	switch {
	case !errors.As(err, &e):
		fail(w, http.StatusInternalServerError, "internal error")
	case e.Code == market.NoSuchInstance:
		fail(w, http.StatusNotFound, "pod not found")
	case e.Code == market.Refused:
		fail(w, http.StatusConflict, e.Message)
	default:
		fail(w, http.StatusBadRequest, e.Message)
	}
}
