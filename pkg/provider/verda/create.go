package verda

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// CreateInstance rents the offer. r.Tag becomes the hostname, which is on the instance from its first moment, and begins
// the name of its script and of its disk.
//
// The vendor knows no maximum price: the type's price is read again, and an offer that has become dearer than r.MaxPrice is
// OfferGone. A create that was refused leaves no script behind; one of which nothing is known leaves it, since the machine
// may need it, until an instance by that tag is destroyed or an hour has passed.
func (p *Provider) CreateInstance(ctx context.Context, r provider.CreateRequest) (provider.Instance, error) {
	what, err := checkRequest(r)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := p.checkPrice(ctx, what, r); err != nil {
		return provider.Instance{}, err
	}
	key, err := p.sshKey(ctx)
	if err != nil {
		return provider.Instance{}, err
	}
	script, err := p.addScript(ctx, r)
	if err != nil {
		return provider.Instance{}, err
	}
	body := createRequest{
		InstanceType: what.instanceType, Image: what.image, Hostname: r.Tag, Description: describe(r.Boot.Port), Location: what.location,
		SSHKeys: []string{key}, Script: script, IsSpot: what.spot, Contract: "PAY_AS_YOU_GO", Pricing: "FIXED_PRICE",
		OSVolume: osVolume{Name: r.Tag + "-os", Size: max(r.DiskGB, minDiskGB)},
	}
	if what.spot {
		body.Contract, body.OSVolume.OnSpot = "SPOT", "delete_permanently"
	}
	id, err := p.add(ctx, "/instances", endpointInstances, body)
	if err != nil {
		if provider.Refused(err) {
			_ = p.removeScript(ctx, script) // The create's failure is what counts; tidy removes what is left.
			p.forgetKey()
		}
		return provider.Instance{}, err
	}
	return provider.Instance{
		Provider: provider.Verda, ID: id, Tag: r.Tag, State: provider.StatePending, CapacityType: r.Offer.CapacityType,
		GPU: r.Offer.GPU, GPUCount: r.Offer.GPUCount, Region: what.location,
		RestKeys: restKeys(what.instanceType, what.location, what.spot),
	}, nil
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func checkRequest(r provider.CreateRequest) (choice, error) {
	what, ok := parseChoice(r.Offer.ID)
	switch {
	case !ok:
		return what, invalid(opCreate, "offer id %q is none of this provider's", r.Offer.ID)
	case r.Offer.CapacityType != capacity(what.spot):
		return what, invalid(opCreate, "capacity type %q, and the offer is %s", r.Offer.CapacityType, capacity(what.spot))
	case !label.MatchString(r.Tag) || len(r.Tag) > hostnameLimit:
		return what, invalid(opCreate, "tag %q is no host name of 1 to %d bytes", r.Tag, hostnameLimit)
	case r.DiskGB < 1 || r.DiskGB > max(r.Offer.DiskGB, minDiskGB):
		return what, invalid(opCreate, "a disk of %d GB; the offer was priced with %d GB", r.DiskGB, r.Offer.DiskGB)
	case r.MaxPrice.Less(r.Offer.Price):
		return what, invalid(opCreate, "the offer costs $%s/h, at most $%s/h may be paid", r.Offer.Price, r.MaxPrice)
	case r.Boot.UserData == "" || len(r.Boot.UserData) > scriptLimit:
		return what, invalid(opCreate, "a start-up script of %d bytes; 1 to %d are possible", len(r.Boot.UserData), scriptLimit)
	case r.Boot.Port < 1 || r.Boot.Port > 65535:
		return what, invalid(opCreate, "port %d", r.Boot.Port)
	}
	return what, nil
}

// checkPrice reads what the offer costs now.
func (p *Provider) checkPrice(ctx context.Context, what choice, r provider.CreateRequest) error {
	types, err := p.types(ctx, opCreate)
	if err != nil {
		return unsent(err)
	}
	disk, err := p.diskRate(ctx, opCreate, max(r.DiskGB, minDiskGB))
	if err != nil {
		return unsent(err)
	}
	price, priced := types[what.instanceType].price(what.spot, disk)
	if !priced || r.MaxPrice.Less(price) {
		return dearer(what.instanceType, price, r.MaxPrice)
	}
	return nil
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	uuid       = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// add makes something and returns its id, which is answered as an object, as a JSON string or as plain text (§3). Text that
// is no UUID may be half of one, or a page: it is believed once the thing is there by that id.
func (p *Provider) add(ctx context.Context, path, endpoint string, body any) (string, error) {
	reply, err := p.call(ctx, opCreate, rest.Call{Endpoint: endpoint, Method: http.MethodPost, Path: path, Body: body, Write: true})
	if err != nil {
		return "", err
	}
	id := idOf(reply.Body)
	if uuid.MatchString(id) {
		return id, nil
	}
	if identifier.MatchString(id) {
		if _, err := p.call(ctx, opCreate, rest.Call{Endpoint: endpoint, Method: http.MethodGet, Path: path + "/" + id}); err == nil {
			return id, nil
		}
	}
	return "", p.odd(opCreate, "the answer to a create at %s is no id that is known", path)
}

func idOf(body []byte) string {
	var made named
	var text string
	switch {
	case json.Unmarshal(body, &made) == nil && made.ID != "":
		return made.ID
	case json.Unmarshal(body, &text) == nil:
		return strings.TrimSpace(text)
	}
	return strings.TrimSpace(string(body))
}

// descriptionPort is where the description says which port was asked for.
const descriptionPort = "gpuscale port="

func describe(port int) string { return descriptionPort + strconv.Itoa(port) }

// keyName is the SSH key's. A user who wants to log in makes a key of this name first.
const keyName = "gpuscale"

// sshKey is the id of the key that every machine gets, because the vendor wants one: the account's by that name, or else a
// new one whose private half nobody has.
func (p *Provider) sshKey(ctx context.Context) (string, error) {
	p.mu.Lock()
	id := p.keyID
	p.mu.Unlock()
	if id != "" {
		return id, nil
	}
	var keys []named
	if err := p.read(ctx, opCreate, "/ssh-keys", nil, &keys); err != nil {
		return "", unsent(err)
	}
	for _, k := range keys {
		if k.Name == keyName && k.ID != "" {
			id = k.ID
			break
		}
	}
	if id == "" {
		public, err := newKey()
		if err != nil {
			return "", provider.Errorf(provider.Verda, opCreate, provider.Unavailable, "SSH key: %v", err)
		}
		if id, err = p.add(ctx, "/ssh-keys", endpointWrites, keyRequest{Name: keyName, Key: public}); err != nil {
			return "", unsent(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keyID = id
	return id, nil
}

// forgetKey: it may have been deleted.
func (p *Provider) forgetKey() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keyID = ""
}

// newKey is a public key in the form of OpenSSH.
func newKey() (string, error) {
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + " " + keyName, nil
}
