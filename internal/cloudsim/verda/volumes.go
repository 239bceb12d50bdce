package verda

import (
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// What becomes of a volume when its spot instance is taken back.
const (
	keepDetached = "keep_detached"
	toTrash      = "move_to_trash"
	forGood      = "delete_permanently"
)

// What has become of a volume.
const (
	attached = "attached"
	detached = "detached"
	trashed  = "trash"
	gone     = "gone"
)

type volume struct {
	id, name, location, instance, onSpot string
	size                                 int
	state                                string
	made                                 time.Time
}

// Leftovers are the names of what outlives its instance: volumes that bill, detached or in the trash, and scripts of
// instances that are gone.
func (s *Server) Leftovers() (out []string) {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.order {
		if v := s.volumes[id]; v.state == detached || v.state == trashed {
			out = append(out, v.state+" volume "+v.name)
		}
	}
	live := map[string]bool{}
	for _, in := range s.market.Books().Instances {
		if in.State != market.Gone {
			live[in.Extra[extraScript]] = true
		}
	}
	for id, one := range s.scripts {
		if !live[id] {
			out = append(out, "script "+one.Name)
		}
	}
	return out
}

// settle lets volumes follow what the market did to their instances.
func (s *Server) settle() {
	ended := map[string]market.Instance{}
	for _, in := range s.market.Books().Instances {
		if in.State == market.Gone {
			ended[in.ID] = in
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		in, over := ended[v.instance]
		if v.state != attached || !over {
			continue
		}
		switch {
		case in.EndedBy == "tenant": // In the vendor's console: what is not asked for goes with the instance.
			v.state = gone
		case v.onSpot == toTrash:
			v.state = trashed
		case v.onSpot == forGood:
			v.state = gone
		default:
			v.state = detached
		}
	}
}

func (v *volume) row() object {
	status, instance := v.state, any(v.instance)
	if v.state == trashed {
		status = "deleted"
	}
	if v.state != attached {
		instance = nil
	}
	return object{"id": v.id, "name": v.name, "size": v.size, "type": "NVMe", "status": status, "instance_id": instance,
		"is_os_volume": true, "location": v.location, "currency": "usd", "created_at": stamp(v.made)}
}

func (s *Server) inState(w http.ResponseWriter, shown func(string) bool) {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []object{}
	for _, id := range s.order {
		if v := s.volumes[id]; shown(v.state) {
			out = append(out, v.row())
		}
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) listVolumes(w http.ResponseWriter, r *http.Request) {
	want := r.URL.Query().Get("status")
	s.inState(w, func(state string) bool {
		return (state == attached || state == detached) && (want == "" || want == state)
	})
}

func (s *Server) listTrash(w http.ResponseWriter, _ *http.Request) {
	s.inState(w, func(state string) bool { return state == trashed })
}

// removeVolume takes either spelling of "for good"; without it the volume goes to the trash.
func (s *Server) removeVolume(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Permanent bool `json:"is_permanent"`
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil || len(raw) > 0 && json.Unmarshal(raw, &in) != nil {
		invalid(w, "request body")
		return
	}
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[r.PathValue("id")]
	switch {
	case v == nil || v.state == gone:
		fail(w, http.StatusNotFound, "not_found", "Invalid volume id")
	case v.state == attached:
		invalid(w, "Volume is attached")
	default:
		v.state = trashed
		if in.Permanent || r.URL.Query().Get("force") == "true" {
			v.state = gone
		}
		w.WriteHeader(http.StatusAccepted)
	}
}
