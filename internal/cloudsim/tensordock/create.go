package tensordock

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// Keys of an instance's Extra.
const (
	extraVCPUs = "vcpus"
	extraRAM   = "ram"
	extraOwnIP = "own-ip"
	extraPorts = "ports"
)

const noNodes = "No available nodes found"

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	f, complaints := readForm(w, r)
	if len(complaints) > 0 {
		complain(w, complaints)
		return
	}
	if !f.ownIP && !slices.Contains(f.forwards, sshPort) {
		s.fail(w, http.StatusBadRequest, "SSH port (22) must be forwarded for Ubuntu VMs")
		return
	}
	offer, ok := s.find(f)
	switch {
	case !ok:
		s.fail(w, http.StatusBadRequest, noNodes)
		return
	case f.ownIP && (!offer.StaticIP || s.opts.NoPublicIPs):
		s.fail(w, http.StatusBadRequest, "No available public IPs found on this hostnode")
		return
	}
	free := freePorts(offer, s.takenPorts())
	for _, port := range f.outside {
		if !slices.Contains(free, port) && (port != 0 || s.opts.NoPortZero && f.hostnode != "") {
			s.fail(w, http.StatusBadRequest, fmt.Sprintf("Port %d is not available on this hostnode", port))
			return
		}
	}
	in, err := s.market.Rent(market.RentRequest{
		Account: account, OfferID: offer.ID, DiskGB: float64(f.storageGB), Label: f.name, UserData: f.script, Image: f.image,
		Rate: computeRate(offer, f.gpus, f.vcpus, f.ramGB), Port: f.port(), Ports: f.forwards,
		Extra: map[string]string{extraVCPUs: strconv.Itoa(f.vcpus), extraRAM: strconv.Itoa(f.ramGB), extraOwnIP: strconv.FormatBool(f.ownIP),
			extraPorts: fmt.Sprint(f.outside)},
	})
	if err != nil {
		s.refuse(w, err)
		return
	}
	reply(w, http.StatusOK, object{"data": object{"type": orderType, "id": in.ID, "name": in.Label, "status": "creating"}})
}

// agentPort is where the software of instances with an address of their own listens: they name none.
const agentPort = 9443

func (f form) port() int {
	for _, p := range f.forwards {
		if p != sshPort {
			return p
		}
	}
	return agentPort
}

// find is the slice that an order gets: the host's, or the cheapest of a data centre's that has what is asked for.
func (s *Server) find(f form) (market.Offer, bool) {
	var fit []market.Offer
	for _, n := range s.nodes() {
		o, ok := n.slices[f.gpus]
		there := NodeID(n.offer.Machine) == f.hostnode || LocationID(n.offer.Region) == f.location
		reached := f.ownIP && (s.hasIP(o) || f.hostnode != "") || !f.ownIP && o.Ports >= len(f.forwards)
		if ok && there && reached && f.fits(o) {
			fit = append(fit, o)
		}
	}
	if len(fit) == 0 {
		return market.Offer{}, false
	}
	return slices.MinFunc(fit, func(a, b market.Offer) int { return cmp.Compare(perGPU(a), perGPU(b)) }), true
}

// refuse puts a market's refusal into the vendor's words.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	var e *market.Error
	if !errors.As(err, &e) {
		reply(w, http.StatusInternalServerError, object{"error": "Internal server error", "status": http.StatusInternalServerError})
		return
	}
	switch e.Code {
	case market.NoSuchInstance:
		notFound(w)
	case market.Refused:
		s.fail(w, http.StatusConflict, "Instance cannot be changed while it is provisioning")
	case market.NoBalance:
		s.fail(w, http.StatusBadRequest, "You need at least $1.00 in your account to deploy this virtual machine")
	case market.NoSuchOffer, market.NoCapacity, market.NotForSale, market.DiskTooLarge:
		s.fail(w, http.StatusBadRequest, noNodes)
	case market.OverQuota:
		s.fail(w, http.StatusBadRequest, "Hostnode unavailable: "+e.Message)
	case market.BidTooLow, market.ContractOver:
		s.fail(w, http.StatusBadRequest, strings.ToLower(e.Message))
	}
}
