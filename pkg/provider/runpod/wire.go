package runpod

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// The vendor's JSON, field by field as the provider reference has it. Pointers are for what may be null or missing.

// catalogue is the answer of GET /v2/catalog/gpus (§2). It keeps its rows raw, so that one odd row does not hide the
// others.
type catalogue struct {
	GPUs *[]json.RawMessage `json:"gpus"`
}

// wireGPU is one type of GPU (§2): GB, and $/h for one GPU.
type wireGPU struct {
	ID           string      `json:"id"`
	Manufacturer *string     `json:"manufacturer"`
	Memory       *float64    `json:"memory"`
	Secure       *bool       `json:"secure"`
	Community    *bool       `json:"community"`
	Price        wirePrices  `json:"price"`
	MaxCount     wireCounts  `json:"maxCount"`
	Availability *string     `json:"availability"`
	DataCenters  []wirePlace `json:"dataCenters"`
	CUDAVersions []wireCUDA  `json:"cudaVersions"`
}

type wirePrices struct {
	Secure    number `json:"secure"`
	Community number `json:"community"`
}

type wireCounts struct {
	Secure    *int `json:"secure"`
	Community *int `json:"community"`
}

type wirePlace struct {
	ID           string  `json:"id"`
	Availability *string `json:"availability"`
}

type wireCUDA struct {
	Version   string `json:"version"`
	Available bool   `json:"available"`
}

// createRequest is the body of POST /v2/pods (§3), which refuses fields that it does not know.
type createRequest struct {
	Name  string    `json:"name"`
	Image string    `json:"image"`
	Cloud string    `json:"cloud"`
	GPU   createGPU `json:"gpu"`
	// DataCenterIDs left out is anywhere.
	DataCenterIDs []string          `json:"dataCenterIds,omitempty"`
	Disk          int               `json:"disk"`
	Ports         []string          `json:"ports"`
	Env           map[string]string `json:"env,omitempty"`
	// Args is a startup as JSON in a string.
	Args string `json:"args"`
}

// createGPU always has a count: without one the vendor has been seen to find nothing (§3).
type createGPU struct {
	ID             string `json:"id"`
	Count          int    `json:"count"`
	MinCUDAVersion string `json:"minCudaVersion,omitempty"`
	// MinRAMPerGPU is refused by servers whose description does not have it.
	MinRAMPerGPU int `json:"minRamPerGpu,omitempty"`
}

// description is what GET /v2/openapi.json says of a create (§0).
type description struct {
	Components struct {
		Schemas struct {
			CreateGPUConfig json.RawMessage `json:"CreateGpuConfig"`
		} `json:"schemas"`
	} `json:"components"`
}

// startup replaces the image's entrypoint and command (§3).
type startup struct {
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd"`
}

// podList is one page of GET /v2/pods (§4). Older servers have no pages.
type podList struct {
	Pods       *[]wirePod `json:"pods"`
	Pagination *struct {
		HasNextPage bool    `json:"hasNextPage"`
		NextCursor  *string `json:"nextCursor"`
	} `json:"pagination"`
}

// wirePod is one rental (§4). Its environment is left unread: it holds what the worker proves itself with.
type wirePod struct {
	ID           string       `json:"id"`
	Name         *string      `json:"name"`
	Status       *string      `json:"status"`
	GPU          *wirePodGPU  `json:"gpu"`
	Cloud        *string      `json:"cloud"`
	DataCenterID *string      `json:"dataCenterId"`
	Ports        []string     `json:"ports"`
	Disk         *int         `json:"disk"`
	Cost         number       `json:"cost"`
	Runtime      *wireRuntime `json:"runtime"`
	CreatedAt    *string      `json:"createdAt"`
}

type wirePodGPU struct {
	ID    string `json:"id"`
	Count *int   `json:"count"`
}

type wireRuntime struct {
	Ports []wirePort `json:"ports"`
}

type wirePort struct {
	Private int     `json:"private"`
	Public  *int    `json:"public"`
	Type    string  `json:"type"`
	IP      *string `json:"ip"`
}

// problem is what a failure says (§7); the members after Errors are those of other answers that may stand in its place.
type problem struct {
	Title  flexText        `json:"title"`
	Status json.RawMessage `json:"status"`
	Detail flexText        `json:"detail"`
	Errors json.RawMessage `json:"errors"`

	Error   flexText `json:"error"`
	Message flexText `json:"message"`
	ID      flexText `json:"id"`
}

// billing is the answer of GET /v2/billing/pods (§8).
type billing struct {
	Records *[]wireBill `json:"records"`
}

// wireBill is what a pod cost in one hour. Amounts keep their digits.
type wireBill struct {
	PodID       string      `json:"podId"`
	StartTime   string      `json:"startTime"`
	EndTime     string      `json:"endTime"`
	TotalAmount json.Number `json:"totalAmount"`
}

// number reads a JSON number, and one written as a string; nil for null and for what is no number.
type number struct{ value *float64 }

// UnmarshalJSON never fails on valid JSON.
func (n *number) UnmarshalJSON(data []byte) error {
	n.value = nil
	text := strings.TrimSpace(string(bytes.Trim(data, `"`)))
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		n.value = &f
	}
	return nil
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

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
