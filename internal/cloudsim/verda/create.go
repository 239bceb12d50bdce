package verda

import (
	"errors"
	"net/http"
	"regexp"
	"slices"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

const (
	extraHostname    = "hostname"
	extraDescription = "description"
	extraScript      = "script"
	extraKeys        = "keys"
	extraImage       = "image"
	extraVolume      = "volume"
	smallestDisk     = 50
)

type order struct {
	Type        string   `json:"instance_type"`
	Image       string   `json:"image"`
	Hostname    string   `json:"hostname"`
	Description string   `json:"description"`
	Location    string   `json:"location_code"`
	Keys        []string `json:"ssh_key_ids"`
	Script      string   `json:"startup_script_id"`
	Volume      struct {
		Name   string  `json:"name"`
		Size   int     `json:"size"`
		OnSpot *string `json:"on_spot_discontinue"`
	} `json:"os_volume"`
	Spot     bool   `json:"is_spot"`
	Contract string `json:"contract"`
	Pricing  string `json:"pricing"`
	Tags     []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"tags"`
}

var hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$`)

// wrong says what is wrong with an order, empty if nothing is.
func (s *Server) wrong(o order) string {
	contract := "PAY_AS_YOU_GO"
	if o.Spot {
		contract = "SPOT"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, scripted := s.scripts[o.Script]
	switch {
	case o.Type == "" || o.Image == "" || o.Description == "":
		return "instance_type, image and description are required"
	case !hostname.MatchString(o.Hostname):
		return "hostname must be a valid hostname"
	case o.Location == "":
		return "location_code is required"
	case len(o.Keys) == 0 || slices.ContainsFunc(o.Keys, func(id string) bool { return s.keys[id].ID == "" }):
		return "ssh_key_ids must contain valid ids"
	case o.Script != "" && !scripted:
		return "Invalid startup script id"
	case o.Image != image && o.Image != oldImage:
		return "Operating system is not valid for this instance type"
	case o.Volume.Name == "" || o.Volume.Size < smallestDisk:
		return "os_volume needs a name and a size of at least 50"
	case o.Volume.OnSpot != nil && !o.Spot:
		return "on_spot_discontinue is for spot instances only"
	case o.Volume.OnSpot != nil && !slices.Contains([]string{keepDetached, toTrash, forGood}, *o.Volume.OnSpot):
		return "on_spot_discontinue has an unknown value"
	case o.Contract != contract || o.Pricing != "FIXED_PRICE":
		return "contract and pricing do not fit"
	case len(o.Tags) > 10:
		return "at most 10 tags"
	}
	return ""
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var o order
	if !read(w, r, &o) {
		return
	}
	if why := s.wrong(o); why != "" {
		invalid(w, why)
		return
	}
	v := &volume{id: newID(), name: o.Volume.Name, location: o.Location, size: o.Volume.Size, onSpot: keepDetached, state: attached,
		made: s.market.Clock().Now()}
	if o.Volume.OnSpot != nil {
		v.onSpot = *o.Volume.OnSpot
	}
	s.mu.Lock()
	text := s.scripts[o.Script].Text
	s.mu.Unlock()
	in, err := s.market.Rent(market.RentRequest{
		Account: account, OfferID: offerID(o.Type, o.Location, o.Spot), Spot: o.Spot, DiskGB: float64(o.Volume.Size), Label: o.Hostname,
		Image: o.Image, UserData: text, Port: machinePort,
		Extra: map[string]string{extraType: o.Type, extraHostname: o.Hostname, extraDescription: o.Description, extraScript: o.Script,
			extraKeys: o.Keys[0], extraImage: o.Image, extraVolume: v.id},
		Prepare: func(_ market.Instance, spec *body.Spec) { spec.OwnAddress = true },
	})
	if err != nil {
		s.refuse(w, o, err)
		return
	}
	v.instance = in.ID
	s.mu.Lock()
	s.volumes[v.id] = v
	s.order = append(s.order, v.id)
	s.mu.Unlock()
	s.created(w, s.opts.CreateStatus, in.ID)
}

// machinePort is where the tenant's software listens: nothing stands before the machine's address.
const machinePort = 9443

// refuse puts a market's refusal into the vendor's words.
func (s *Server) refuse(w http.ResponseWriter, o order, err error) {
	var e *market.Error
	if !errors.As(err, &e) {
		fail(w, http.StatusInternalServerError, "server_error", "Internal server error")
		return
	}
	switch e.Code {
	case market.NoSuchOffer, market.NotForSale:
		invalid(w, "Instance type "+o.Type+" is not available in "+o.Location)
	case market.NoCapacity, market.BidTooLow:
		fail(w, http.StatusBadRequest, s.opts.NoCapacityCode, "No capacity for "+o.Type+" in "+o.Location)
	case market.OverQuota:
		invalid(w, "Instance limit exceeded: "+e.Message)
	case market.NoBalance:
		fail(w, http.StatusPaymentRequired, "insufficient_funds", "Insufficient funds")
	case market.DiskTooLarge:
		invalid(w, "os_volume is too large")
	case market.NoSuchInstance, market.ContractOver, market.Refused:
		fail(w, http.StatusInternalServerError, "server_error", e.Message)
	}
}
