package vastai

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/pkg/money"
)

// The vendor's JSON, field by field as the provider reference has it. Pointers are for what may be null or missing.

// op is one condition of a search: {"gte": 8}.
type op map[string]any

// searchRequest is the body of POST /api/v0/bundles/ (§2).
type searchRequest struct {
	Verified         op          `json:"verified"`
	Rentable         op          `json:"rentable"`
	Rented           op          `json:"rented"`
	External         op          `json:"external"`
	DirectPortCount  op          `json:"direct_port_count"`
	DiskSpace        op          `json:"disk_space"`
	Geolocation      op          `json:"geolocation,omitempty"`
	AllocatedStorage int         `json:"allocated_storage"`
	Type             string      `json:"type"`
	Order            [][2]string `json:"order"`
	Limit            int         `json:"limit"`
}

// searchReply keeps its rows raw, so that one odd row does not hide the others.
type searchReply struct {
	Offers *[]json.RawMessage `json:"offers"`
}

// wireOffer is one row of a search (§2): MB, GB, Mb/s, $/h, $/GB/month and seconds.
type wireOffer struct {
	ID                int64    `json:"id"`
	MachineID         int64    `json:"machine_id"`
	HostID            int64    `json:"host_id"`
	GPUName           string   `json:"gpu_name"`
	NumGPUs           int      `json:"num_gpus"`
	GPUFrac           *float64 `json:"gpu_frac"`
	GPURAM            *float64 `json:"gpu_ram"`
	CPURAM            *float64 `json:"cpu_ram"`
	CPUCores          *float64 `json:"cpu_cores"`
	CPUCoresEffective *float64 `json:"cpu_cores_effective"`
	CPUArch           *string  `json:"cpu_arch"`
	DiskSpace         *float64 `json:"disk_space"`
	InetDownCost      *float64 `json:"inet_down_cost"`
	InetUpCost        *float64 `json:"inet_up_cost"`
	StorageCost       price    `json:"storage_cost"`
	DPHBase           price    `json:"dph_base"`
	MinBid            price    `json:"min_bid"`
	ComputeCap        *float64 `json:"compute_cap"`
	// CUDAMaxGood keeps its digits: as a float, 12.10 would be 12.1.
	CUDAMaxGood     *json.Number `json:"cuda_max_good"`
	Reliability     *float64     `json:"reliability"`
	Reliability2    *float64     `json:"reliability2"`
	Geolocation     *string      `json:"geolocation"`
	DirectPortCount *float64     `json:"direct_port_count"`
	Duration        *float64     `json:"duration"`
}

// createRequest is the body of PUT /api/v0/asks/{id}/ (§3).
type createRequest struct {
	ClientID string            `json:"client_id"`
	Image    string            `json:"image"`
	RunType  string            `json:"runtype"`
	User     string            `json:"user"`
	OnStart  string            `json:"onstart"`
	Args     []string          `json:"args,omitempty"`
	Env      map[string]string `json:"env"`
	Disk     int               `json:"disk"`
	Label    string            `json:"label"`
	// Price present is a bid; absent is on-demand.
	Price         *money.Dollars `json:"price,omitempty"`
	CancelUnavail bool           `json:"cancel_unavail"`
}

// answer is what any reply may say of success and failure (§7). NewContract may come with either (§3).
type answer struct {
	Success     *bool       `json:"success"`
	Error       flexText    `json:"error"`
	Msg         flexText    `json:"msg"`
	Message     flexText    `json:"message"`
	Detail      flexText    `json:"detail"`
	NewContract json.Number `json:"new_contract"`
}

// flexText reads a string, and keeps anything else as its JSON text: error fields are not always strings.
type flexText string

// UnmarshalJSON never fails on valid JSON.
func (f *flexText) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		s = string(data)
	}
	if string(data) == "null" {
		s = ""
	}
	*f = flexText(s)
	return nil
}

// getReply is the answer of GET /api/v0/instances/{id}/ (§4): an object, null or a list under a plural name.
type getReply struct {
	Instances json.RawMessage `json:"instances"`
}

// listReply is one page of GET /api/v1/instances/ (§4).
type listReply struct {
	Success        *bool           `json:"success"`
	TotalInstances *int            `json:"total_instances"`
	NextToken      *string         `json:"next_token"`
	Instances      *[]wireInstance `json:"instances"`
}

// wireInstance is one rental (§4): $/h and seconds since 1970.
type wireInstance struct {
	ID             int64    `json:"id"`
	MachineID      int64    `json:"machine_id"`
	HostID         int64    `json:"host_id"`
	Label          *string  `json:"label"`
	ActualStatus   flexText `json:"actual_status"`
	IntendedStatus *string  `json:"intended_status"`
	CurState       *string  `json:"cur_state"`
	NextState      *string  `json:"next_state"`
	StatusMsg      *string  `json:"status_msg"`
	IsBid          *bool    `json:"is_bid"`
	DPHTotal       price    `json:"dph_total"`
	GPUName        *string  `json:"gpu_name"`
	NumGPUs        *int     `json:"num_gpus"`
	GPURAM         *float64 `json:"gpu_ram"`
	Geolocation    *string  `json:"geolocation"`
	PublicIPAddr   *string  `json:"public_ipaddr"`
	Ports          ports    `json:"ports"`
	ExtraEnv       extraEnv `json:"extra_env"`
	StartDate      *float64 `json:"start_date"`
	EndDate        *float64 `json:"end_date"`
}

// UnmarshalJSON leaves out a field of another type than it should have: an instance of which one figure is odd is there
// all the same, and so are the others of its list.
func (w *wireInstance) UnmarshalJSON(data []byte) error {
	type plain wireInstance
	var odd *json.UnmarshalTypeError
	err := json.Unmarshal(data, (*plain)(w))
	if errors.As(err, &odd) && w.ID > 0 {
		return nil
	}
	return err
}

// price is a number, or a string that holds one; it is nil for anything else.
type price struct{ amount *float64 }

// UnmarshalJSON never fails on valid JSON.
func (p *price) UnmarshalJSON(data []byte) error {
	p.amount = nil
	text := strings.TrimSpace(strings.Trim(string(data), `"`))
	if f, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		p.amount = &f
	}
	return nil
}

// ports maps "9443/tcp" to where it is published.
type ports map[string][]struct {
	HostPort flexText `json:"HostPort"`
}

// extraEnv is the environment that create was given, flags among it: [["KEY","value"],["-p 9443:9443","1"]].
type extraEnv [][]string

// UnmarshalJSON takes pairs, and an object in case; any other form counts as nothing said.
func (e *extraEnv) UnmarshalJSON(data []byte) error {
	var pairs [][]string
	if json.Unmarshal(data, &pairs) == nil {
		*e = pairs
		return nil
	}
	var object map[string]flexText
	_ = json.Unmarshal(data, &object) // what is neither leaves the object empty
	for k, v := range object {
		*e = append(*e, []string{k, string(v)})
	}
	return nil
}

// userReply is the answer of GET /api/v0/users/current/ (§1).
type userReply struct {
	ID      json.Number `json:"id"`
	Balance *float64    `json:"balance"`
	Credit  *float64    `json:"credit"`
}

// chargesReply is one page of GET /api/v0/charges/.
type chargesReply struct {
	Results   *[]wireCharge `json:"results"`
	NextToken *string       `json:"next_token"`
}

// wireCharge is one contract's charges, or one kind of charge within them. Amounts keep their digits.
type wireCharge struct {
	Start  float64      `json:"start"`
	End    float64      `json:"end"`
	Source *string      `json:"source"`
	Amount json.Number  `json:"amount"`
	Items  []wireCharge `json:"items"`
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
