package runpod

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
)

// form is a create's body as understood.
type form struct {
	name, image, cloud, gpu string
	count                   int
	dataCenters             []string
	disk                    int
	ports                   []string
	env                     map[string]string
	args                    string
	command                 []string
	floor                   string
	exact                   []string
	ram                     int // GB per GPU, at the least
}

// bad is a refusal of a form: by the schema (422, with each violation), or by a rule (400).
type bad struct {
	status int
	detail string
	errors []string
}

func rule(format string, args ...any) *bad {
	return &bad{status: http.StatusBadRequest, detail: fmt.Sprintf(format, args...)}
}

// wireForm is the body by its schema. What is optional is a pointer.
type wireForm struct {
	Name             *string           `json:"name"`
	Image            *string           `json:"image"`
	Args             *string           `json:"args"`
	Disk             *int              `json:"disk"`
	Env              map[string]string `json:"env"`
	Ports            []string          `json:"ports"`
	Registry         *string           `json:"registry"`
	Cloud            *string           `json:"cloud"`
	DataCenterIDs    []string          `json:"dataCenterIds"`
	GlobalNetworking *bool             `json:"globalNetworking"`
	StartSSH         *bool             `json:"startSsh"`
	StartJupyter     *bool             `json:"startJupyter"`
	TemplateID       *string           `json:"templateId"`
	CPU              *struct{}         `json:"cpu"`
	Mounts           *struct {
		Persistent *struct {
			Size int    `json:"size"`
			Path string `json:"path"`
		} `json:"persistent"`
		Network []struct {
			VolumeID string `json:"volumeId"`
			Path     string `json:"path"`
		} `json:"network"`
	} `json:"mounts"`
	GPU *struct {
		ID                  *string  `json:"id"`
		Count               *int     `json:"count"`
		AllowedCUDAVersions []string `json:"allowedCudaVersions"`
		MinCUDAVersion      *string  `json:"minCudaVersion"`
		MinRAMPerGPU        *int     `json:"minRamPerGpu"`
	} `json:"gpu"`
}

const (
	defaultDisk = 50
	maxEnv      = 50
	maxHTTP     = 10
)

var portForm = regexp.MustCompile(`^(\d+)/(tcp|http)$`)

// readForm reads a create; ram says whether it may ask for RAM. No count is not a bad form: it finds nothing.
func readForm(r *http.Request, ram bool) (form, *bad) {
	var in wireForm
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return form{}, schema(strings.TrimPrefix(err.Error(), "json: "))
	}
	if in.GPU != nil && in.GPU.MinRAMPerGPU != nil && !ram {
		return form{}, schema("gpu: additional properties 'minRamPerGpu' not allowed")
	}
	if violations := in.violations(); len(violations) > 0 {
		return form{}, schema(violations...)
	}
	f := form{name: *in.Name, image: *in.Image, cloud: deref(in.Cloud, cloudSecure), dataCenters: in.DataCenterIDs,
		disk: deref(in.Disk, defaultDisk), ports: in.Ports, env: in.Env, args: deref(in.Args, "")}
	if b := in.rules(); b != nil {
		return form{}, b
	}
	f.gpu, f.count, f.exact = *in.GPU.ID, deref(in.GPU.Count, 0), in.GPU.AllowedCUDAVersions
	f.floor, f.ram = deref(in.GPU.MinCUDAVersion, ""), deref(in.GPU.MinRAMPerGPU, 0)
	var b *bad
	f.command, b = readArgs(f.args)
	return f, b
}

func schema(violations ...string) *bad {
	errors := make([]string, len(violations))
	for i, v := range violations {
		errors[i] = "$: " + v
	}
	return &bad{http.StatusUnprocessableEntity, "Request validation failed.", errors}
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// violations are of the schema.
func (in wireForm) violations() []string {
	var out []string
	add := func(wrong bool, text string) {
		if wrong {
			out = append(out, text)
		}
	}
	add(in.Name == nil || *in.Name == "", "missing property 'name'")
	add(in.Image == nil, "missing property 'image'")
	add(in.Disk != nil && *in.Disk < 1, "disk: minimum: got less than 1")
	add(in.Cloud != nil && *in.Cloud != cloudSecure && *in.Cloud != cloudCommunity, "cloud: value must be one of 'SECURE', 'COMMUNITY'")
	if in.GPU != nil {
		add(in.GPU.ID == nil, "gpu: missing property 'id'")
		add(in.GPU.MinRAMPerGPU != nil && *in.GPU.MinRAMPerGPU < 1, "gpu.minRamPerGpu: minimum: got less than 1")
		add(in.GPU.Count != nil && *in.GPU.Count < 1, "gpu.count: minimum: got less than 1")
		add(in.GPU.MinCUDAVersion != nil && !cudaVersion.MatchString(*in.GPU.MinCUDAVersion), "gpu.minCudaVersion: does not match pattern")
		add(slices.ContainsFunc(in.GPU.AllowedCUDAVersions, func(v string) bool { return !cudaVersion.MatchString(v) }),
			"gpu.allowedCudaVersions: does not match pattern")
	}
	if in.Mounts != nil {
		add(in.Mounts.Persistent != nil && (in.Mounts.Persistent.Size < 10 || in.Mounts.Persistent.Path == ""), "mounts.persistent: minimum: got less than 10, or no path")
		add(len(in.Mounts.Network) > 1, "mounts.network: maxItems: got more than 1")
	}
	return out
}

// rules are those that a body can break which fits the schema.
func (in wireForm) rules() *bad {
	switch {
	case in.TemplateID != nil, in.CPU != nil:
		return rule("templates and CPU pods are not supported by this simulation")
	case in.GPU == nil:
		return rule("exactly one of gpu or cpu must be set")
	case in.GPU.MinCUDAVersion != nil && len(in.GPU.AllowedCUDAVersions) > 0:
		return rule("gpu.allowedCudaVersions and gpu.minCudaVersion are mutually exclusive")
	case in.Mounts != nil && in.Mounts.Persistent != nil && in.Mounts.Network != nil:
		return rule("mounts.persistent and mounts.network are mutually exclusive")
	case in.Mounts != nil && (in.Mounts.Persistent != nil || in.Mounts.Network != nil):
		return rule("mounts are not supported by this simulation")
	case len(in.Env) > maxEnv:
		return rule("env must be of at most %d keys", maxEnv)
	}
	web := 0
	for _, p := range in.Ports {
		m := portForm.FindStringSubmatch(p)
		if m == nil {
			return rule("ports: %q must be port/protocol with tcp or http", p)
		}
		if m[2] == "http" {
			web++
		}
	}
	if web > maxHTTP {
		return rule("ports: at most %d http ports", maxHTTP)
	}
	return nil
}

// readArgs reads plain text, which is the command, or JSON with an entrypoint and a command.
func readArgs(args string) ([]string, *bad) {
	if !strings.HasPrefix(strings.TrimSpace(args), "{") {
		return strings.Fields(args), nil
	}
	var start struct {
		Entrypoint []string `json:"entrypoint"`
		Cmd        []string `json:"cmd"`
	}
	d := json.NewDecoder(strings.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(&start); err != nil {
		return nil, rule("args must be text, or JSON with entrypoint and cmd")
	}
	return append(start.Entrypoint, start.Cmd...), nil
}

// tcp are the numbers of the tcp ports.
func (f form) tcp() []int {
	var out []int
	for _, p := range f.ports {
		if number, is := strings.CutSuffix(p, "/tcp"); is {
			n, _ := strconv.Atoi(number) // The rules have seen that it is digits; what is too long for a port reaches nothing.
			out = append(out, n)
		}
	}
	return out
}

// host reports whether a host with that CUDA and RAM will do.
func (f form) host(o market.Offer) bool {
	cuda := o.CUDA
	if o.RAMMB < f.ram*1000*max(1, o.GPUs) {
		return false
	}
	if len(f.exact) > 0 {
		return slices.Contains(f.exact, version(cuda))
	}
	least, err := strconv.ParseFloat(f.floor, 64)
	return err != nil || cuda >= least
}
