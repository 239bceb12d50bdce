package verda

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// status is the vendor's word for what an instance does; a word that the market was told by a test is said as it is.
func status(in market.Instance) string {
	if in.Ending && in.State != market.Gone {
		return "deleting"
	}
	switch in.State {
	case market.Accepted:
		if in.Waiting {
			return "pending"
		}
		return "ordered"
	case market.Created, market.Loading:
		return "provisioning"
	case market.Running:
		return "running"
	case market.Rebooting:
		return "validating"
	case market.Stopped, market.Exited:
		return "offline"
	case market.Frozen:
		return "hibernating"
	case market.Unknown, market.Offline:
		return "unknown"
	case market.Gone:
		return "discontinued"
	}
	return string(in.State)
}

// stamp is a time as the vendor writes it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// shown drops what its tenant has deleted, and what the vendor took back where that vanishes.
func (s *Server) shown(in market.Instance) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted[in.ID] && in.State == market.Gone {
		return false
	}
	return in.State != market.Gone || in.EndedBy != "tenant" && !s.opts.Vanishes
}

func (s *Server) row(in market.Instance) object {
	o := in.Offer
	var ip any
	if in.Host != "" {
		ip = in.Host
	}
	contract := "PAY_AS_YOU_GO"
	if in.Spot {
		contract = "SPOT"
	}
	return object{
		"id": in.ID, "ip": ip, "status": status(in), "created_at": stamp(in.CreatedAt),
		"instance_type": in.Extra[extraType], "hostname": in.Extra[extraHostname], "description": in.Extra[extraDescription],
		"location": o.Region, "image": in.Extra[extraImage], "os_name": "Ubuntu 24.04", "is_spot": in.Spot, "contract": contract,
		"pricing": "FIXED_PRICE", "price_per_hour": s.price(in.GPURate),
		"gpu":        object{"description": strconv.Itoa(o.GPUs) + "x " + o.GPU, "number_of_gpus": o.GPUs},
		"gpu_memory": object{"size_in_gigabytes": o.GPUMemoryMB / 1024 * o.GPUs}, "cpu": object{"number_of_cores": o.Cores},
		"memory": object{"size_in_gigabytes": o.RAMMB / 1000}, "storage": object{"description": fmt.Sprintf("%.0fGB NVMe", in.DiskGB)},
		"startup_script_id": in.Extra[extraScript], "ssh_key_ids": []string{in.Extra[extraKeys]},
		"os_volume_id": in.Extra[extraVolume], "volume_ids": []string{in.Extra[extraVolume]}, "tags": []object{},
	}
}

// list is everything that is not deleted, in one piece.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	want := r.URL.Query().Get("status")
	out := []object{}
	for _, in := range s.market.List(account) {
		if s.shown(in) && (want == "" || want == status(in)) {
			out = append(out, s.row(in))
		}
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	in, err := s.market.Get(account, r.PathValue("id"))
	if err != nil || !s.shown(in) {
		s.noInstance(w)
		return
	}
	reply(w, http.StatusOK, s.row(in))
}

func (s *Server) noInstance(w http.ResponseWriter) {
	if s.opts.NotFoundIs400 {
		invalid(w, "Invalid instance id")
		return
	}
	fail(w, http.StatusNotFound, "not_found", "Instance not found")
}

// act is PUT /instances, of which the tenant here only needs delete.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	var in struct {
		IDs       []string  `json:"id"`
		Action    string    `json:"action"`
		Volumes   *[]string `json:"volume_ids"`
		Permanent bool      `json:"delete_permanently"`
	}
	if !read(w, r, &in) {
		return
	}
	if in.Action != "delete" || len(in.IDs) != 1 {
		invalid(w, "Invalid action")
		return
	}
	id := in.IDs[0]
	now, known := s.bookOf(id)
	switch {
	case !known || now.State == market.Gone && !s.shown(now):
		s.noInstance(w)
		return
	case now.State == market.Gone:
		fail(w, http.StatusForbidden, "forbidden_action", "Can't discontinue a discontinued instance")
		return
	case s.takeRefusal() || !s.opts.DeleteWhileProvisioning && status(now) == "provisioning":
		fail(w, http.StatusForbidden, "forbidden_action", "Can't discontinue a provisioning instance")
		return
	}
	if err := s.market.Destroy(account, id, "tenant"); err != nil {
		fail(w, http.StatusInternalServerError, "server_error", "Internal server error")
		return
	}
	s.part(id, in.Volumes, in.Permanent)
	if s.opts.DeleteStatus == http.StatusNoContent {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	reply(w, s.opts.DeleteStatus, []object{{"action": "delete", "instanceId": id, "status": "success"}})
}

func (s *Server) takeRefusal() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == 0 {
		return false
	}
	s.refused--
	return true
}

// bookOf is an instance whether or not the list shows it yet.
func (s *Server) bookOf(id string) (market.Instance, bool) {
	for _, in := range s.market.Books().Instances {
		if in.ID == id && in.Account == account {
			return in, true
		}
	}
	return market.Instance{}, false
}

// part decides about the volumes of an instance that is deleted: without a list the OS volume goes, with an empty one
// none, else those named.
func (s *Server) part(id string, named *[]string, permanent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted[id] = true
	for _, v := range s.volumes {
		switch {
		case v.instance != id || v.state != attached:
		case named != nil && !slices.Contains(*named, v.id):
			v.state = detached
		case permanent && !s.opts.TrashAnyway:
			v.state = gone
		default:
			v.state = trashed
		}
	}
}
