package vastai

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// Limits of a create (§3).
const (
	imageLimit   = 1024
	labelLimit   = 256
	envNameLimit = 256
	envLimit     = 32768
)

// CreateInstance rents the offer: as a bid of r.Offer.Bid for spot, and without a price for on-demand. r.Tag becomes
// the label, which is on the instance from its first moment.
//
// The vendor knows no maximum price, and what is charged follows from the offer: r.Offer.Price above r.MaxPrice is
// Invalid. A bid that the market has passed rents a stopped instance and answers an error; Error.InstanceID then names
// it (§3).
func (p *Provider) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	body, err := createBody(r)
	if err != nil {
		return provider.Instance{}, err
	}
	reply, err := p.call(ctx, opCreate, rest.Call{
		Endpoint: endpointCreate,
		Method:   http.MethodPut,
		Path:     "/api/v0/asks/" + r.Offer.ID + "/",
		Body:     body,
		Write:    true,
	})
	if err != nil {
		return provider.Instance{}, err
	}
	a, readable := readAnswer(reply.Body)
	if !readable {
		return provider.Instance{}, p.odd(opCreate, "the answer is no JSON object")
	}
	id := contractID(a.NewContract)
	if id == "" || a.Success == nil {
		e := p.odd(opCreate, "status 200 without success and new_contract")
		e.InstanceID = id
		return provider.Instance{}, e
	}
	return provider.Instance{
		Provider:     provider.VastAI,
		ID:           id,
		Tag:          r.Tag,
		State:        provider.StatePending,
		CapacityType: r.Offer.CapacityType,
		GPU:          r.Offer.GPU,
		GPUCount:     r.Offer.GPUCount,
		Region:       r.Offer.Region,
		RestKeys:     r.Offer.RestKeys,
	}, nil
}

func createBody(r provider.CreateRequest) (createRequest, error) {
	if err := checkRequest(r); err != nil {
		return createRequest{}, err
	}
	if err := checkBoot(r.Boot); err != nil {
		return createRequest{}, err
	}
	env, err := environment(r.Boot)
	if err != nil {
		return createRequest{}, err
	}
	body := createRequest{
		ClientID: "me",
		Image:    r.Boot.Image,
		RunType:  "args",
		// Images with another user cannot set up what the host expects (§10).
		User: "root",
		// In this run type onstart replaces the entrypoint and args the command (§3).
		OnStart: r.Boot.Command[0],
		Args:    r.Boot.Command[1:],
		Env:     env,
		Disk:    max(r.DiskGB, minDiskGB),
		Label:   r.Tag,
		// Fail at once rather than wait for the GPU with the disk billed.
		CancelUnavail: true,
	}
	if r.Offer.CapacityType == provider.Spot {
		body.Price = &r.Offer.Bid
	}
	return body, nil
}

// checkRequest refuses what the vendor would take for something else: a spot offer without a bid buys on-demand, and
// a disk above the one that was priced costs more than was reserved.
func checkRequest(r provider.CreateRequest) error {
	o := r.Offer
	if id, err := strconv.ParseInt(o.ID, 10, 64); err != nil || id <= 0 {
		return invalid(opCreate, "offer id %q is not a number", o.ID)
	}
	if r.Tag == "" || len(r.Tag) > labelLimit {
		return invalid(opCreate, "a tag of %d bytes; 1 to %d are possible", len(r.Tag), labelLimit)
	}
	switch o.CapacityType {
	case provider.Spot:
		if o.Bid.Less(minPrice) || maxPrice.Less(o.Bid) {
			return invalid(opCreate, "a bid of $%s/h; %s to %s are possible", o.Bid, minPrice, maxPrice)
		}
	case provider.OnDemand:
	default:
		return invalid(opCreate, "capacity type %q is neither spot nor on-demand", o.CapacityType)
	}
	if r.DiskGB < 1 || r.DiskGB > max(o.DiskGB, minDiskGB) {
		return invalid(opCreate, "a disk of %d GB; the offer was priced with %d GB", r.DiskGB, o.DiskGB)
	}
	if r.MaxPrice.Less(o.Price) {
		return invalid(opCreate, "the offer costs $%s/h, at most $%s/h may be paid", o.Price, r.MaxPrice)
	}
	return nil
}

func checkBoot(b provider.Boot) error {
	name := b.Image[strings.LastIndex(b.Image, "/")+1:]
	if !strings.ContainsAny(name, ":@") {
		// Without a tag the vendor fails without saying why (§3).
		return invalid(opCreate, "image %q has no tag", b.Image)
	}
	if len(b.Image) > imageLimit {
		return invalid(opCreate, "an image name of %d bytes; at most %d are possible", len(b.Image), imageLimit)
	}
	if len(b.Command) == 0 || b.Command[0] == "" {
		return invalid(opCreate, "no command")
	}
	// How the vendor joins the arguments is not documented; a separator each is counted in.
	size := len(b.Command) - 1
	for _, arg := range b.Command {
		size += len(arg)
	}
	if size > commandLimit {
		return invalid(opCreate, "a command of %d bytes; at most %d are possible", size, commandLimit)
	}
	if b.Port < 1 || b.Port > 65535 {
		return invalid(opCreate, "port %d", b.Port)
	}
	return nil
}

// portVariable repeats the published port in the container's environment: whether a list shows the flag that published
// it is not known (§4), while variables are shown, and an image may publish others (§9).
const portVariable = "GPUSCALE_PORT"

// environment is the container's environment with the published port, which the vendor reads as a flag among it (§3).
func environment(b provider.Boot) (map[string]string, error) {
	env := make(map[string]string, len(b.Env)+2)
	total := 0
	for name, v := range b.Env {
		if name == "" || len(name) > envNameLimit || strings.HasPrefix(name, "-") || strings.ContainsAny(name, "= \t\r\n") {
			return nil, invalid(opCreate, "environment name %q", name)
		}
		env[name] = v
		total += len(name) + len(v)
	}
	if total > envLimit {
		return nil, invalid(opCreate, "an environment of %d bytes; at most %d are possible", total, envLimit)
	}
	env[portFlag(b.Port)] = "1"
	env[portVariable] = strconv.Itoa(b.Port)
	return env, nil
}

func portFlag(port int) string { return fmt.Sprintf("-p %d:%d", port, port) }
