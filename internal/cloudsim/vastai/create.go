package vastai

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

func (s *Server) create(w http.ResponseWriter, r *http.Request, c caller) {
	ask := r.PathValue("id")
	if integer(ask) <= 0 {
		s.fail(w, http.StatusBadRequest, "invalid_args",
			"error 400/3467: Invalid args: 'id' is required and must be a valid offer ID")
		return
	}
	raw, err := readObject(w, r)
	if err != nil {
		s.refuseAsk(w, ask, http.StatusBadRequest, "invalid_args", "error 400/3466: Invalid args: Invalid json body")
		return
	}
	order, bad := readOrderForm(raw)
	if bad != nil {
		s.refuseAsk(w, ask, bad.status, bad.slug, bad.msg)
		return
	}
	request := order.rent(ask, c.account)
	if s.opts.LabelIsKey {
		request.Token = order.label
	}
	in, err := s.market.Rent(request)
	if err != nil {
		s.refuseRent(w, ask, in, order, err)
		return
	}
	reply(w, http.StatusOK, object{"success": true, "new_contract": integer(in.ID), "instance_api_key": in.Key})
}

// refuseAsk answers a create that fails: with its status, or with 200 where the façade is told so.
func (s *Server) refuseAsk(w http.ResponseWriter, ask string, status int, slug, msg string) {
	if s.opts.FailWith200 {
		status = http.StatusOK
	}
	s.refuse(w, status, object{"success": false, "error": slug, "msg": msg, "ask_id": integer(ask)})
}

// refuseRent puts a market's refusal into the vendor's words.
func (s *Server) refuseRent(w http.ResponseWriter, ask string, in market.Instance, f form, err error) {
	var e *market.Error
	if !errors.As(err, &e) {
		s.refuseAsk(w, ask, http.StatusInternalServerError, "server_error", "internal error")
		return
	}
	switch e.Code {
	case market.NoSuchOffer:
		s.noSuchAsk(w, ask, s.opts.GoneStatus)
	case market.NoCapacity:
		s.noSuchAsk(w, ask, http.StatusGone)
	case market.BidTooLow:
		s.lowBid(w, ask, in)
	case market.NotForSale:
		s.refuseAsk(w, ask, http.StatusBadRequest, "invalid_price", "error 400/3468: Offer is not sold that way.")
	case market.DiskTooLarge:
		s.refuseAsk(w, ask, http.StatusBadRequest, "invalid_args",
			fmt.Sprintf("error 400/3471: Invalid args: disk %g exceeds what the machine has", f.disk))
	case market.OverQuota:
		s.refuseAsk(w, ask, http.StatusBadRequest, "spend_rate_limit", "Your account has reached its limit: "+e.Message)
	case market.NoBalance:
		s.refuseAsk(w, ask, http.StatusBadRequest, "insufficient_credit",
			"Your account lacks credit; see the billing page.")
	case market.NoSuchInstance, market.ContractOver, market.Refused:
		s.refuseAsk(w, ask, http.StatusInternalServerError, "server_error", e.Message)
	}
}

// noSuchAsk has three statuses, and a slug that names the reason only with the last.
func (s *Server) noSuchAsk(w http.ResponseWriter, ask string, status int) {
	slug := "invalid_args"
	msg := fmt.Sprintf("error %d/3603: no_such_ask Instance type by id %s is not available.", status, ask)
	if status == http.StatusGone {
		slug = "no_such_ask"
		msg = fmt.Sprintf("error 410/3907: no_such_ask Instance type %s is no longer available.", ask)
	}
	s.refuseAsk(w, ask, status, slug, msg)
}

// lowBid answers a bid under the minimum, which leaves a stopped instance behind besides failing.
func (s *Server) lowBid(w http.ResponseWriter, ask string, in market.Instance) {
	if in.ID != "" && s.opts.LowBidWith200 {
		reply(w, http.StatusOK, object{"success": true, "new_contract": integer(in.ID), "instance_api_key": in.Key})
		return
	}
	out := object{"success": false, "error": "invalid_price", "ask_id": integer(ask),
		"msg": "error 400/3469: bid is below the minimum bid of the machine."}
	if in.ID != "" {
		out["new_contract"] = integer(in.ID)
	}
	status := http.StatusBadRequest
	if s.opts.FailWith200 {
		status = http.StatusOK
	}
	s.refuse(w, status, out)
}

// rent is the order in the market's words.
func (f form) rent(ask, account string) market.RentRequest {
	q := market.RentRequest{
		Account: account, OfferID: ask, Spot: f.price != nil, DiskGB: f.disk, Label: f.label,
		Wait: !f.cancel, Stopped: f.target == "stopped", Image: f.image, Command: f.command, Env: f.env,
		Ports:   f.ports,
		Prepare: providerEnv,
		Extra:   map[string]string{"runtype": f.runtype, "onstart": f.onstart},
	}
	if f.price != nil {
		q.Bid = market.USD(*f.price)
	}
	if len(f.ports) > 0 {
		q.Port = f.ports[0]
	}
	return q
}

// providerEnv is what the vendor sets in every container.
func providerEnv(in market.Instance, spec *body.Spec) {
	spec.Env["CONTAINER_ID"] = in.ID
	spec.Env["CONTAINER_API_KEY"] = in.Key
	spec.Env["VAST_CONTAINERLABEL"] = "C." + in.ID
	spec.Env["GPU_COUNT"] = fmt.Sprint(in.Offer.GPUs)
	spec.HostEnv = append(spec.HostEnv, "PUBLIC_IPADDR")
	if in.Port > 0 {
		spec.PortEnv = append(spec.PortEnv, fmt.Sprintf("VAST_TCP_PORT_%d", in.Port))
	}
}
