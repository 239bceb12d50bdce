package verda

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// The vendor's JSON (provider reference §2 to §7). Fields that are not used are left out.

// amount is a price as text or number; nil where it is absent, null or neither.
type amount struct{ value *float64 }

// UnmarshalJSON takes both forms, and nothing for any other.
func (a *amount) UnmarshalJSON(b []byte) error {
	text := strings.Trim(strings.TrimSpace(string(bytes.TrimSpace(b))), `"`)
	a.value = nil
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		a.value = &n
	}
	return nil
}

type wireType struct {
	InstanceType string `json:"instance_type"`
	CPU          struct {
		Cores float64 `json:"number_of_cores"`
	} `json:"cpu"`
	GPU       wireGPU    `json:"gpu"`
	GPUMemory wireMemory `json:"gpu_memory"`
	Memory    wireMemory `json:"memory"`
	PerHour   amount     `json:"price_per_hour"`
	Spot      amount     `json:"spot_price"`
	Currency  string     `json:"currency"`
	Images    []string   `json:"supported_os"`
}

type wireGPU struct {
	Description string `json:"description"`
	Count       int    `json:"number_of_gpus"`
}

type wireMemory struct {
	GB float64 `json:"size_in_gigabytes"`
}

type wireStock struct {
	Location string   `json:"location_code"`
	Types    []string `json:"availabilities"`
}

type wireVolumeType struct {
	Type  string `json:"type"`
	Price struct {
		PerMonthPerGB amount `json:"price_per_month_per_gb"`
		Currency      string `json:"currency"`
	} `json:"price"`
}

type scriptRequest struct {
	Name   string `json:"name"`
	Script string `json:"script"`
}

type keyRequest struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// named is a script, a key or a volume, as far as it matters. A list may say them with more.
type named struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Status  string `json:"status"`
	Created string `json:"created_at"`
}

type createRequest struct {
	InstanceType string   `json:"instance_type"`
	Image        string   `json:"image"`
	Hostname     string   `json:"hostname"`
	Description  string   `json:"description"`
	Location     string   `json:"location_code"`
	SSHKeys      []string `json:"ssh_key_ids"`
	Script       string   `json:"startup_script_id"`
	OSVolume     osVolume `json:"os_volume"`
	IsSpot       bool     `json:"is_spot"`
	Contract     string   `json:"contract"`
	Pricing      string   `json:"pricing"`
}

type osVolume struct {
	Name string `json:"name"`
	Size int    `json:"size"`
	// OnSpot is for spot only: it is refused on-demand.
	OnSpot string `json:"on_spot_discontinue,omitempty"`
}

type wireInstance struct {
	ID           string     `json:"id"`
	IP           *string    `json:"ip"`
	Status       string     `json:"status"`
	CreatedAt    string     `json:"created_at"`
	InstanceType string     `json:"instance_type"`
	Hostname     string     `json:"hostname"`
	Description  string     `json:"description"`
	Location     string     `json:"location"`
	IsSpot       bool       `json:"is_spot"`
	GPU          wireGPU    `json:"gpu"`
	GPUMemory    wireMemory `json:"gpu_memory"`
	ScriptID     *string    `json:"startup_script_id"`
	OSVolumeID   *string    `json:"os_volume_id"`
}

// actionRequest ends an instance. Volumes is null, never empty, where no id is known: an empty list keeps all.
type actionRequest struct {
	ID        []string `json:"id"`
	Action    string   `json:"action"`
	Volumes   []string `json:"volume_ids"`
	Permanent bool     `json:"delete_permanently"`
}

type actionResult struct {
	InstanceID string          `json:"instanceId"`
	Status     string          `json:"status"`
	Error      json.RawMessage `json:"error"`
	StatusCode int             `json:"statusCode"`
}

type permanent struct {
	IsPermanent bool `json:"is_permanent"`
}

type balanceReply struct {
	Amount amount `json:"amount"`
}

// failure is the body of an error; ID is there where something was made all the same.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	ID      string `json:"id"`
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
