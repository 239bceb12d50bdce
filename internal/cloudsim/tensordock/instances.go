package tensordock

import (
	"net/http"
	"strconv"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// status is the vendor's word. Its software's end is the VM's, as when a guest turns itself off; a host that is away has
// none, so its VMs are running.
func (s *Server) status(in market.Instance) string {
	words := map[market.State]string{
		market.Accepted: "creating", market.Created: "provisioning", market.Loading: "starting",
		market.Running: "running", market.Rebooting: "running", market.Unknown: "running", market.Offline: "running",
		market.Stopped: "stopped", market.Frozen: "stopped", market.Exited: "stopped", market.Gone: "deleted",
	}
	switch {
	case in.Ending && in.State != market.Gone:
		return "deleting"
	case in.State == market.Stopped && in.Reclaimed:
		return "stoppeddisassociated"
	case in.Waiting:
		return "queued"
	}
	if word, ok := words[in.State]; ok {
		return word
	}
	return string(in.State)
}

// row is all that there is to say of an instance.
func (s *Server) row(in market.Instance) object {
	o := in.Offer
	name := v0Name(o)
	out := object{"type": orderType, "id": in.ID, "name": in.Label, "status": s.status(in), "portForwards": s.forwards(in),
		"rateHourly": 0,
		"resources": object{"vcpu_count": number(in.Extra[extraVCPUs]), "ram_gb": number(in.Extra[extraRAM]), "storage_gb": in.DiskGB,
			"gpus": object{name: object{"count": o.GPUs, "v0Name": name}}}}
	if in.Host != "" {
		out["ipAddress"] = in.Host
	}
	if !in.StartedAt.IsZero() {
		out["rateHourly"] = s.money((in.GPURate + in.StorageRate).Dollars())
	}
	return out
}

func number(s string) int {
	n, _ := strconv.Atoi(s) // What this façade wrote.
	return n
}

// forwards are made some time after the start, to ports of the host's choice. Only the first but SSH leads anywhere.
func (s *Server) forwards(in market.Instance) []object {
	out := []object{}
	late := s.market.Clock().Now().Before(in.StartedAt.Add(s.opts.PortsAfter))
	if in.HostPort == 0 || late || in.Extra[extraOwnIP] == "true" {
		return out
	}
	for _, p := range in.Ports {
		outside := in.HostPort
		if p != in.Port {
			outside = 1 // Refused at once, wherever the sim runs.
		}
		out = append(out, object{"internal_port": p, "external_port": outside})
	}
	return out
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	in, err := s.market.Get(account, r.PathValue("id"))
	switch {
	case err != nil:
		s.refuse(w, err)
	case s.opts.Wrapped:
		reply(w, http.StatusOK, object{"data": s.row(in)})
	default:
		reply(w, http.StatusOK, s.row(in))
	}
}

func (s *Server) list(w http.ResponseWriter, _ *http.Request) {
	items := []object{}
	for _, in := range s.market.List(account) {
		row := s.row(in)
		if !s.opts.FullList {
			row = object{"id": row["id"], "name": row["name"], "status": row["status"]}
		}
		if s.opts.ListForm == "attributes" {
			id := row["id"]
			delete(row, "id")
			row = object{"type": orderType, "id": id, "attributes": row}
		}
		items = append(items, row)
	}
	if s.opts.ListForm == "instances" {
		reply(w, http.StatusOK, object{"data": object{"instances": items}})
		return
	}
	reply(w, http.StatusOK, object{"data": items})
}

func (s *Server) destroy(w http.ResponseWriter, r *http.Request) {
	if err := s.market.Destroy(account, r.PathValue("id"), "tenant"); err != nil {
		s.refuse(w, err)
		return
	}
	if s.opts.NoContent {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	reply(w, http.StatusOK, object{"data": object{"type": "success", "message": "Virtual machine deletion started"}})
}

// stop turns a VM off. It holds its GPUs, and pays for them, unless the façade is told otherwise.
func (s *Server) stop(w http.ResponseWriter, r *http.Request) {
	if err := s.StopInstance(r.PathValue("id")); err != nil {
		s.refuse(w, err)
		return
	}
	reply(w, http.StatusOK, object{"data": object{"type": orderType, "attributes": object{"status": "stopping"}}})
}

// StopInstance stops an instance as its owner does.
func (s *Server) StopInstance(id string) error {
	if s.opts.StopReleases {
		return s.market.Stop(account, id)
	}
	if err := s.market.Kill(id); err != nil {
		return err
	}
	return s.market.SetState(id, market.Frozen)
}
