package tensordock

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// The vendor's JSON, field by field as the provider reference has it.

// number is a JSON number, or one in a string: prices come as both. What is neither is not known, and never an error,
// so that one odd field does not hide a row.
type number struct {
	v     float64
	known bool
}

// UnmarshalJSON never fails on valid JSON.
func (n *number) UnmarshalJSON(data []byte) error {
	text := strings.TrimPrefix(strings.TrimSpace(strings.Trim(string(data), `"`)), "$")
	v, err := strconv.ParseFloat(text, 64)
	*n = number{v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)}
	return nil
}

// whole is the number rounded down, 0 for what is not known, negative or absurd.
func (n number) whole() int {
	if !n.known || n.v < 0 || n.v > math.MaxInt32 {
		return 0
	}
	return int(n.v)
}

// text reads a string, and keeps anything else but null as its JSON: error fields are not always strings.
type text string

// UnmarshalJSON never fails on valid JSON.
func (f *text) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		s = string(data)
	}
	if string(data) == "null" {
		s = ""
	}
	*f = text(s)
	return nil
}

// hostnodesReply and locationsReply keep their rows raw, so that one odd row does not hide the others (§2).
type hostnodesReply struct {
	Data struct {
		Hostnodes *[]json.RawMessage `json:"hostnodes"`
	} `json:"data"`
}

type locationsReply struct {
	Data struct {
		Locations *[]json.RawMessage `json:"locations"`
	} `json:"data"`
}

// wirePricing is $/h for each vCPU and for each GB (§2).
type wirePricing struct {
	PerVCPU      number `json:"per_vcpu_hr"`
	PerRAMGB     number `json:"per_gb_ram_hr"`
	PerStorageGB number `json:"per_gb_storage_hr"`
}

// wireHostnode is one machine and what is free on it (§2).
type wireHostnode struct {
	ID         text         `json:"id"`
	LocationID text         `json:"location_id"`
	Uptime     number       `json:"uptime_percentage"`
	Available  wireNodeFree `json:"available_resources"`
	Pricing    wirePricing  `json:"pricing"`
	Location   wireCity     `json:"location"`
}

type wireNodeFree struct {
	GPUs []struct {
		V0Name text   `json:"v0Name"`
		Count  number `json:"availableCount"`
		Price  number `json:"price_per_hr"`
	} `json:"gpus"`
	VCPUs     number `json:"vcpu_count"`
	RAMGB     number `json:"ram_gb"`
	StorageGB number `json:"storage_gb"`
	// Limits for one VM, and for each GPU in it; any may be absent.
	MaxVCPUsPerGPU number `json:"max_vcpus_per_gpu"`
	MaxRAMPerGPU   number `json:"max_ram_per_gpu"`
	MaxVCPUs       number `json:"max_vcpus"`
	MaxRAMGB       number `json:"max_ram_gb"`
	MaxStorageGB   number `json:"max_storage_gb"`
	// Ports is nil where the host does not say.
	Ports       *[]number `json:"available_ports"`
	HasPublicIP bool      `json:"has_public_ip_available"`
}

// wireCity is where a hostnode stands (§2).
type wireCity struct {
	UUID    text   `json:"uuid"`
	City    text   `json:"city"`
	Country text   `json:"country"`
	Tier    number `json:"tier"`
}

// wireLocation is the market of one data centre (§2).
type wireLocation struct {
	ID      text   `json:"id"`
	City    text   `json:"city"`
	Country text   `json:"country"`
	Tier    number `json:"tier"`
	GPUs    []struct {
		V0Name    text   `json:"v0Name"`
		Count     number `json:"max_count"`
		Price     number `json:"price_per_hr"`
		Resources struct {
			MaxVCPUs     number `json:"max_vcpus"`
			MaxRAMGB     number `json:"max_ram_gb"`
			MaxStorageGB number `json:"max_storage_gb"`
		} `json:"resources"`
		Pricing wirePricing `json:"pricing"`
		Network struct {
			DedicatedIP    bool `json:"dedicated_ip_available"`
			PortForwarding bool `json:"port_forwarding_available"`
		} `json:"network_features"`
	} `json:"gpus"`
}

// createRequest is the body of POST /instances (§3).
type createRequest struct {
	Data createData `json:"data"`
}

type createData struct {
	Type       string           `json:"type"`
	Attributes createAttributes `json:"attributes"`
}

type createAttributes struct {
	Name      string          `json:"name"`
	Type      string          `json:"type"`
	Image     string          `json:"image"`
	Resources createResources `json:"resources"`
	// Exactly one of both.
	LocationID string `json:"location_id,omitempty"`
	HostnodeID string `json:"hostnode_id,omitempty"`
	SSHKey     string `json:"ssh_key"`
	// Exactly one of both.
	UseDedicatedIP bool          `json:"useDedicatedIp,omitempty"`
	PortForwards   []portForward `json:"port_forwards,omitempty"`
	CloudInit      cloudInit     `json:"cloud_init"`
}

type createResources struct {
	VCPUs     int                 `json:"vcpu_count"`
	RAMGB     int                 `json:"ram_gb"`
	StorageGB int                 `json:"storage_gb"`
	GPUs      map[string]gpuCount `json:"gpus"`
}

type gpuCount struct {
	Count int `json:"count"`
}

type portForward struct {
	Protocol     string `json:"protocol"`
	InternalPort int    `json:"internal_port"`
	// ExternalPort 0 leaves the choice to the host.
	ExternalPort int `json:"external_port"`
}

// cloudInit is the part of a #cloud-config that is sent (§3). There is no encoding of files.
type cloudInit struct {
	PackageUpdate bool        `json:"package_update"`
	WriteFiles    []writeFile `json:"write_files"`
	RunCmd        []string    `json:"runcmd"`
}

type writeFile struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
}

// answer is what any reply may say of success and failure (§3). Status is a word in an instance and a number in an
// error.
type answer struct {
	Status  text            `json:"status"`
	Success text            `json:"success"`
	Error   text            `json:"error"`
	Message text            `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// answerData is what an answer's data may say of the same.
type answerData struct {
	Type    text `json:"type"`
	Error   text `json:"error"`
	Message text `json:"message"`
	ID      text `json:"id"`
}

// complaint is one entry of a validation error, which comes as a bare array (§3).
type complaint struct {
	Code    text   `json:"code"`
	Message text   `json:"message"`
	Path    []text `json:"path"`
}

// listData is what a list holds where its data is an object (§4).
type listData struct {
	Instances *[]json.RawMessage `json:"instances"`
}

// listReply is the answer of GET /instances (§4). No pages are documented; what would speak of them is read to notice.
type listReply struct {
	Data  json.RawMessage `json:"data"`
	Links struct {
		Next text `json:"next"`
	} `json:"links"`
	Meta struct {
		Total number `json:"total"`
	} `json:"meta"`
}

// wireVM is one instance: flat, or with its fields in attributes (§4).
type wireVM struct {
	ID        text     `json:"id"`
	Name      text     `json:"name"`
	Status    text     `json:"status"`
	IPAddress text     `json:"ipAddress"`
	Forwards  forwards `json:"portForwards"`
	Resources struct {
		GPUs map[string]struct {
			Count  number `json:"count"`
			V0Name text   `json:"v0Name"`
		} `json:"gpus"`
	} `json:"resources"`
	RateHourly number `json:"rateHourly"`
	// Some clients know of these (§4, uncertain).
	LocationID text    `json:"location_id"`
	HostnodeID text    `json:"hostnode_id"`
	CreatedAt  text    `json:"created_at"`
	Attributes *wireVM `json:"attributes"`
}

// UnmarshalJSON leaves out a field of another type than it should have: an instance of which one thing is odd is there
// all the same, and so are the others of its list.
func (w *wireVM) UnmarshalJSON(data []byte) error {
	type plain wireVM
	var odd *json.UnmarshalTypeError
	if err := json.Unmarshal(data, (*plain)(w)); err != nil && !errors.As(err, &odd) {
		return err
	}
	return nil
}

type wireForward struct {
	Internal number `json:"internal_port"`
	External number `json:"external_port"`
}

// forwards are empty until the host has made them. Any other form than a list counts as nothing said.
type forwards []wireForward

// UnmarshalJSON never fails on valid JSON.
func (f *forwards) UnmarshalJSON(data []byte) error {
	var list []wireForward
	if json.Unmarshal(data, &list) != nil {
		list = nil
	}
	*f = list
	return nil
}

// readVM reads an instance in any of its forms: flat, in data, or with attributes in either.
func readVM(raw json.RawMessage) (wireVM, error) {
	var outer struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &outer); err != nil {
		return wireVM{}, err
	}
	if data := bytes.TrimSpace(outer.Data); len(data) > 0 && data[0] == '{' {
		raw = data
	}
	var w wireVM
	if err := json.Unmarshal(raw, &w); err != nil {
		return wireVM{}, err
	}
	if w.Attributes == nil {
		return w, nil
	}
	inner := *w.Attributes
	if inner.ID == "" {
		inner.ID = w.ID
	}
	return inner, nil
}
