package runpod

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Keys of Instance.Extra, in which a pod keeps what its create said.
const (
	extraPorts = "ports"
	extraArgs  = "args"
)

func (s *Server) create(w http.ResponseWriter, r *http.Request, _ caller) {
	f, refused := readForm(r, s.opts.MinRAM)
	if refused != nil {
		fail(w, refused.status, refused.detail, refused.errors...)
		return
	}
	in, err := s.place(f)
	var e *market.Error
	switch {
	case err == nil:
		reply(w, http.StatusCreated, s.podRow(in))
	case !errors.As(err, &e):
		fail(w, http.StatusInternalServerError, "internal error")
	case e.Code == market.NoBalance:
		fail(w, http.StatusPaymentRequired, "Your account balance is too low to create this pod.")
	case e.Code == market.OverQuota:
		fail(w, http.StatusBadRequest, "You have reached your spend limit.")
	case e.Code == market.DiskTooLarge:
		fail(w, http.StatusBadRequest, "This machine does not have enough disk space for the requested specifications.")
	default:
		fail(w, s.opts.CapacityStatus, s.opts.CapacityText)
	}
}

// place rents the first offer that fits. Without a count none does.
func (s *Server) place(f form) (market.Instance, error) {
	err := error(&market.Error{Code: market.NoCapacity, Message: "nothing fits"})
	for _, o := range s.market.Offers() {
		if o.GPU != f.gpu || o.GPUs != f.count || o.Extra[extraCloud] != f.cloud || !f.host(o) ||
			len(f.dataCenters) > 0 && !slices.Contains(f.dataCenters, o.Region) {
			continue
		}
		var in market.Instance
		if in, err = s.market.Rent(f.rent(o.ID)); err == nil {
			return in, nil
		}
	}
	return market.Instance{}, err
}

// rent is the order in the market's words.
func (f form) rent(offer string) market.RentRequest {
	ports, _ := json.Marshal(f.ports) // Strings can always be written.
	q := market.RentRequest{Account: account, OfferID: offer, DiskGB: float64(f.disk), Label: f.name, Image: f.image,
		Command: f.command, Env: f.env, Ports: f.tcp(), Prepare: providerEnv,
		Extra: map[string]string{extraPorts: string(ports), extraArgs: f.args}}
	if len(q.Ports) > 0 {
		q.Port = q.Ports[0]
	}
	return q
}

// providerEnv is what the vendor sets in every pod, whatever the tenant set by the same names.
func providerEnv(in market.Instance, spec *body.Spec) {
	spec.Env["RUNPOD_POD_ID"] = in.ID
	spec.Env["RUNPOD_API_KEY"] = in.Key
	spec.Env["RUNPOD_DC_ID"] = in.Offer.Region
	spec.Env["RUNPOD_GPU_COUNT"] = strconv.Itoa(in.Offer.GPUs)
	spec.HostEnv = append(spec.HostEnv, "RUNPOD_PUBLIC_IP")
	if in.Port > 0 {
		spec.PortEnv = append(spec.PortEnv, fmt.Sprintf("RUNPOD_TCP_PORT_%d", in.Port))
	}
}
