package runpod

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// Limits of a create: §3, and what a name may be so that it can be looked up by.
const (
	envLimit  = 50
	nameLimit = 191
)

// CreateInstance rents a pod of the offer's type, number of GPUs, cloud and data centre, on a host with the offer's CUDA.
// r.Tag becomes the name, which is on the pod from its first moment.
//
// The vendor knows no maximum price, and what is charged follows from the offer: r.Offer.Price above r.MaxPrice is
// Invalid. The rate that the answer tells is the Instance's Price.
func (p *Provider) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	body, err := createBody(r)
	if err != nil {
		return provider.Instance{}, err
	}
	reply, err := p.call(ctx, opCreate, rest.Call{
		Method: http.MethodPost,
		Path:   "/v2/pods",
		Body:   body,
		Write:  true,
	})
	if err != nil {
		return provider.Instance{}, err
	}
	var pod wirePod
	if err := json.Unmarshal(reply.Body, &pod); err != nil {
		return provider.Instance{}, p.odd(opCreate, "the answer is not what a create answers: %v", err)
	}
	if !podID.MatchString(pod.ID) {
		return provider.Instance{}, p.odd(opCreate, "status %d without a pod's id", reply.Status)
	}
	out := p.instance(pod)
	// What was asked for, where the first answer does not have it yet.
	out.Tag, out.GPU, out.GPUCount, out.RestKeys = r.Tag, r.Offer.GPU, r.Offer.GPUCount, r.Offer.RestKeys
	if pod.Status == nil {
		out.State = provider.StatePending
	}
	if out.Region == "" {
		out.Region = r.Offer.Region
	}
	return out, nil
}

func createBody(r provider.CreateRequest) (createRequest, error) {
	at, err := checkRequest(r)
	if err != nil {
		return createRequest{}, err
	}
	if err := checkBoot(r.Boot); err != nil {
		return createRequest{}, err
	}
	start, err := json.Marshal(startup{Entrypoint: r.Boot.Command[:1], Cmd: r.Boot.Command[1:]})
	if err != nil {
		return createRequest{}, invalid(opCreate, "the command: %v", err)
	}
	body := createRequest{
		Name:  r.Tag,
		Image: r.Boot.Image,
		Cloud: at.Cloud,
		GPU:   createGPU{ID: at.GPU, Count: at.Count, MinCUDAVersion: at.CUDA, MinRAMPerGPU: at.RAM},
		Disk:  max(r.DiskGB, minDiskGB),
		// Not http, which would put the vendor's proxy between (§4).
		Ports: []string{fmt.Sprintf("%d/tcp", r.Boot.Port)},
		Env:   r.Boot.Env,
		Args:  string(start),
	}
	if at.DataCenter != "" {
		body.DataCenterIDs = []string{at.DataCenter}
	}
	whole, err := json.Marshal(body)
	if err != nil || len(whole) > bodyLimit {
		return createRequest{}, invalid(opCreate, "a request of %d bytes; at most %d are possible", len(whole), bodyLimit)
	}
	return body, nil
}

// checkRequest refuses what the vendor would take for something else.
func checkRequest(r provider.CreateRequest) (placement, error) {
	o := r.Offer
	switch o.CapacityType {
	case provider.OnDemand:
	case provider.Spot:
		return placement{}, provider.Errorf(provider.RunPod, opCreate, provider.Unsupported, "there are no spot instances, only on-demand")
	default:
		return placement{}, invalid(opCreate, "capacity type %q is neither spot nor on-demand", o.CapacityType)
	}
	at, err := placementOf(o.ID)
	if err != nil {
		return at, invalid(opCreate, "%v", err)
	}
	if r.Tag == "" || len(r.Tag) > nameLimit {
		return at, invalid(opCreate, "a tag of %d bytes; 1 to %d are possible", len(r.Tag), nameLimit)
	}
	if r.DiskGB < 1 || r.DiskGB > max(o.DiskGB, minDiskGB) {
		return at, invalid(opCreate, "a disk of %d GB; the offer was priced with %d GB", r.DiskGB, o.DiskGB)
	}
	if r.MaxPrice.Less(o.Price) {
		return at, invalid(opCreate, "the offer costs $%s/h, at most $%s/h may be paid", o.Price, r.MaxPrice)
	}
	return at, nil
}

func checkBoot(b provider.Boot) error {
	name := b.Image[strings.LastIndex(b.Image, "/")+1:]
	if !strings.ContainsAny(name, ":@") {
		// Hosts keep images by tag, and "latest" is whatever one once pulled (§9).
		return invalid(opCreate, "image %q has no tag", b.Image)
	}
	if len(b.Command) == 0 || b.Command[0] == "" {
		// The image's own entrypoint would be started, and an empty one starts nothing (§3, §9).
		return invalid(opCreate, "no command")
	}
	size := len(b.Command) - 1
	for _, arg := range b.Command {
		size += len(arg)
	}
	if size > commandLimit {
		return invalid(opCreate, "a command of %d bytes; at most %d are possible", size, commandLimit)
	}
	if len(b.Env) > envLimit {
		return invalid(opCreate, "%d environment variables; at most %d are possible", len(b.Env), envLimit)
	}
	for name := range b.Env {
		// The vendor's own: the pod's name, address and key, by which it ends its rental (§1, §4).
		if name == "" || strings.ContainsAny(name, "= \t\r\n") || strings.HasPrefix(name, "RUNPOD_") {
			return invalid(opCreate, "environment name %q", name)
		}
	}
	if b.Port < 1 || b.Port > 65535 {
		return invalid(opCreate, "port %d", b.Port)
	}
	return nil
}
