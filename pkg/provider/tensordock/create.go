package tensordock

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

const (
	vmType = "virtualmachine"
	// image is the one that is said to come with driver, Docker and toolkit (§3, uncertain); the plain one has no driver
	// that works (§11).
	image = "ubuntu2404_ml_everything"
	// bootPath is in memory: the document carries the worker's key. write_files does not make folders before it, and
	// /tmp may be swept between write_files and runcmd.
	bootPath = "/run/gpuscale-boot.sh"
	sshPort  = 22
	// tagLimit leaves room for the port in a name that is a DNS label.
	tagLimit = 63 - len("-p65535")
)

// CreateInstance rents the offer's shape. r.Tag becomes the name, which is on the VM from its first moment, and
// r.Boot.UserData, which is not looked into, the script that cloud-init runs at the first boot.
//
// Where the host can give the VM an address of its own it is asked for, since forwards have been ignored by some hosts
// (§11). A host that has none left refuses; where it forwards ports too, it is then asked once more for that. Nothing
// else is ever asked twice.
//
// The vendor knows no maximum price, and what is charged follows from the offer: r.Offer.Price above r.MaxPrice is
// Invalid.
func (p *Provider) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	at, err := checkRequest(r)
	if err != nil {
		return provider.Instance{}, err
	}
	key, err := throwawayKey()
	if err != nil {
		return provider.Instance{}, invalid(opCreate, "no SSH key can be made: %v", err)
	}
	if at.network == forwarded {
		return p.create(ctx, r, at.body(r, key, forwarded))
	}
	inst, err := p.create(ctx, r, at.body(r, key, ownIP))
	if at.network == eitherWay && wantsPublicIP(err) {
		return p.create(ctx, r, at.body(r, key, forwarded))
	}
	return inst, err
}

func (p *Provider) create(ctx context.Context, r provider.CreateRequest, body createRequest) (provider.Instance, error) {
	reply, err := p.call(ctx, opCreate, rest.Call{
		Method: http.MethodPost,
		Path:   "/api/v2/instances",
		Body:   body,
		Write:  true,
	})
	if err != nil {
		return provider.Instance{}, err
	}
	w, err := readVM(reply.Body)
	if err != nil {
		return provider.Instance{}, p.odd(opCreate, "the answer is not what a create answers: %v", err)
	}
	if !word.MatchString(string(w.ID)) {
		return provider.Instance{}, p.odd(opCreate, "status %d without an id", reply.Status)
	}
	return provider.Instance{
		Provider:     provider.TensorDock,
		ID:           string(w.ID),
		Tag:          r.Tag,
		State:        provider.StatePending,
		Message:      string(w.Status),
		CapacityType: provider.OnDemand,
		GPU:          r.Offer.GPU,
		GPUCount:     r.Offer.GPUCount,
		Region:       r.Offer.Region,
		RestKeys:     r.Offer.RestKeys,
	}, nil
}

// checkRequest refuses what the vendor would refuse, and a disk above the one that was priced, which costs more than was
// reserved. It returns where the offer is.
func checkRequest(r provider.CreateRequest) (place, error) {
	o := r.Offer
	at, err := placeOf(o.ID)
	switch {
	case err != nil:
		return at, invalid(opCreate, "%v", err)
	case !tag.MatchString(r.Tag) || len(r.Tag) > tagLimit:
		return at, invalid(opCreate, "tag %q is no DNS label of at most %d bytes", r.Tag, tagLimit)
	case portSuffix.MatchString(r.Tag):
		return at, invalid(opCreate, "tag %q ends like a port", r.Tag)
	case o.CapacityType == provider.Spot:
		return at, provider.Errorf(provider.TensorDock, opCreate, provider.Unsupported, "there is no spot")
	case o.CapacityType != provider.OnDemand:
		return at, invalid(opCreate, "capacity type %q is neither spot nor on-demand", o.CapacityType)
	case at.vcpus%2 != 0 || ramStep(at.ramGB) != at.ramGB:
		return at, invalid(opCreate, "%d vCPUs and %d GB of RAM are no shape", at.vcpus, at.ramGB)
	case r.DiskGB < 1 || storageFor(r.DiskGB) > o.DiskGB:
		return at, invalid(opCreate, "a disk of %d GB; the offer was priced with %d GB", r.DiskGB, o.DiskGB)
	case r.MaxPrice.Less(o.Price):
		return at, invalid(opCreate, "the offer costs $%s/h, at most $%s/h may be paid", o.Price, r.MaxPrice)
	case r.Boot.UserData == "":
		return at, invalid(opCreate, "no boot script")
	case len(r.Boot.UserData) > bootDataLimit:
		return at, invalid(opCreate, "a boot script of %d bytes; at most %d are possible", len(r.Boot.UserData), bootDataLimit)
	case r.Boot.Port < 1 || r.Boot.Port > maxPort || r.Boot.Port == sshPort:
		return at, invalid(opCreate, "port %d", r.Boot.Port)
	}
	return at, nil
}

// body is the order for a place, reached in one of its ways.
func (p place) body(r provider.CreateRequest, key, way string) createRequest {
	a := createAttributes{
		Name:  nameOf(r.Tag, r.Boot.Port, way),
		Type:  vmType,
		Image: image,
		Resources: createResources{
			VCPUs: p.vcpus, RAMGB: p.ramGB, StorageGB: storageFor(r.DiskGB),
			GPUs: map[string]gpuCount{p.v0Name: {p.gpus}},
		},
		SSHKey:    key,
		CloudInit: cloudInitFor(r.Boot.UserData),
	}
	if p.kind == byHostnode {
		a.HostnodeID = p.id
	} else {
		a.LocationID = p.id
	}
	if way == ownIP {
		a.UseDedicatedIP = true
	} else {
		// Without an address of its own a VM must have SSH forwarded (§3). Free ports can be chosen of a host that tells
		// them, else the host chooses (§9).
		a.PortForwards = []portForward{{"tcp", sshPort, p.ports[0]}, {"tcp", r.Boot.Port, p.ports[1]}}
	}
	return createRequest{createData{vmType, a}}
}

// cloudInitFor has the script written to a file that only root can read, and run once. Nothing is updated at boot: it
// takes minutes that are paid for, and holds the lock that whoever installs something needs (§11).
func cloudInitFor(script string) cloudInit {
	return cloudInit{
		WriteFiles: []writeFile{{Path: bootPath, Content: script, Owner: "root:root", Permissions: "0600"}},
		RunCmd:     []string{"bash " + bootPath},
	}
}

var (
	tag        = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	portSuffix = regexp.MustCompile(`-p([1-9][0-9]{0,4})$`)
)

// nameOf is the VM's name: its tag, and with an address of its own the port at which the agent listens there, which no
// answer repeats. Without it, a VM whose forwards are not there yet could not be told from one that needs none.
func nameOf(tag string, port int, way string) string {
	if way == ownIP {
		return fmt.Sprintf("%s-p%d", tag, port)
	}
	return tag
}

// fromName is the tag in a name, and the port if the VM has an address of its own, else 0.
func fromName(name string) (tag string, port int) {
	m := portSuffix.FindStringSubmatchIndex(name)
	if m == nil {
		return name, 0
	}
	port, err := strconv.Atoi(name[m[2]:m[3]])
	if err != nil || port > maxPort {
		return name, 0
	}
	return name[:m[0]], port
}

// throwawayKey is an SSH public key whose other half nobody has: a VM cannot be ordered without one (§3), and nobody is
// to log in.
func throwawayKey() (string, error) {
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + " gpuscale", nil
}
