package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// Verdict is what a finding means for serving.
type Verdict string

// Bad is what keeps the machine from serving; Note is worth knowing and keeps it from nothing.
const (
	OK   Verdict = "ok"
	Note Verdict = "note"
	Bad  Verdict = "bad"
)

// Finding is one thing that was looked at.
type Finding struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	// Advice is what to do about it; empty where nothing is to be done.
	Advice string `json:"advice,omitempty"`
}

// Report is what a machine looks like to an agent that would serve there.
type Report struct {
	Version  string `json:"version"`
	Platform string `json:"platform"`
	// Serves: nothing was found that keeps an agent from serving here.
	Serves   bool      `json:"serves"`
	Findings []Finding `json:"findings"`
}

// CheckConfig is what Check looks at beside the machine. The zero value works but for Getenv.
type CheckConfig struct {
	// Boot is what the agent would be told, nil where there is nothing; BootError says that it is not understood.
	Boot      *agentapi.Boot
	BootError error
	// Listen is where the agent would listen.
	Listen  string
	Version string
	Getenv  func(string) string
	// Probe reads the GPUs; nil means NvidiaSMI.
	Probe Probe
	// Metadata is the address of the metadata service where it is not the clouds' own.
	Metadata string
	// Command is the engine's, nil for the default.
	Command []string
	// Patience bounds each look at something; 0 means five seconds.
	Patience time.Duration
}

// leastDiskGB is what the smallest models and the engine's caches take.
const leastDiskGB = 10

// Check looks at a machine as an agent would that boots there. It changes nothing, needs neither GPU nor boot data nor
// network, and returns within Patience and a little.
func Check(ctx context.Context, c CheckConfig) Report {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Patience, 5*time.Second))
	defer cancel()
	r := Report{Version: c.Version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Serves: true}
	looks := []func(context.Context) []Finding{c.boot, c.gpus, c.engine, c.disk, c.port, c.metadata, c.selfEnd}
	found := make([][]Finding, len(looks))
	var wg sync.WaitGroup
	for i, look := range looks {
		wg.Go(func() { found[i] = look(ctx) })
	}
	wg.Wait()
	for _, some := range found {
		r.Findings = append(r.Findings, some...)
	}
	for _, f := range r.Findings {
		r.Serves = r.Serves && f.Verdict != Bad
	}
	return r
}

func one(name string, v Verdict, detail, advice string) []Finding {
	return []Finding{{Name: name, Verdict: v, Detail: detail, Advice: advice}}
}

func (c CheckConfig) boot(context.Context) []Finding {
	const name = "boot data"
	switch {
	case c.BootError != nil:
		return one(name, Bad, c.BootError.Error(), "pass "+agentapi.EnvBoot+" on as the controller wrote it")
	case c.Boot == nil:
		return one(name, Note, "none", "the controller gives them to the machines that it rents; by hand nothing can be served")
	}
	return one(name, OK, fmt.Sprintf("claim %s of installation %s", c.Boot.ClaimName, c.Boot.Installation), "")
}

func (c CheckConfig) gpus(ctx context.Context) []Finding {
	probe := c.Probe
	if probe == nil {
		probe = NvidiaSMI
	}
	have, err := probe(ctx)
	switch {
	case ctx.Err() != nil && err != nil:
		return one("GPUs", Bad, "nvidia-smi does not answer", "the driver hangs: restart the machine, or take another one")
	case err != nil:
		detail := strings.TrimPrefix(err.Error(), ErrNoDriver.Error()+": ")
		return one("GPUs", Bad, "no working NVIDIA driver: "+detail,
			"install the driver; in a container, start it with the host's GPUs (docker run --gpus all)")
	}
	driver := Finding{Name: "driver", Verdict: OK, Detail: fmt.Sprintf("%s, for CUDA up to %s", have.Driver, have.CUDA)}
	if len(have.GPUs) == 0 {
		return []Finding{{"GPUs", Bad, "the driver is there and shows no GPU", "give the container or machine a GPU"}, driver}
	}
	gpus := Finding{Name: "GPUs", Verdict: OK, Detail: fmt.Sprintf("%d × %s, %d MB each", len(have.GPUs), have.GPUs[0].Name, have.GPUs[0].MemoryMB)}
	if c.Boot != nil && c.Boot.GPUs.Count > 0 {
		if wrong := mismatch(c.Boot.GPUs, have); wrong != "" {
			gpus.Verdict, gpus.Detail, gpus.Advice = Bad, gpus.Detail+"; "+wrong, "the machine is not what was paid for; the controller ends it and rents another"
		}
	}
	return []Finding{gpus, driver}
}

func (c CheckConfig) engine(ctx context.Context) []Finding {
	if c.Boot != nil && c.Boot.Image != "" {
		r := DockerRunner{Image: c.Boot.Image, GPUs: c.Boot.GPUs.Count > 0, Claim: c.Boot.ClaimUID, Patience: time.Second}
		found, err := r.findRuntime(ctx, Progress{Doing: func(string) {}})
		if err != nil {
			return one("engine", Bad, err.Error(), "the machine's image needs Docker and the NVIDIA Container Toolkit; the controller ends it and rents another")
		}
		return one("engine", OK, found+", for engines of "+c.Boot.Image, "")
	}
	command := c.Command
	if command == nil {
		command = DefaultCommand()
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return one("engine", Bad, command[0]+" is not in the PATH",
			"use an image with vLLM, such as vllm/vllm-openai, or name another server in "+agentapi.EnvEngineCommand)
	}
	return one("engine", OK, path, "")
}

// disk looks at where engines keep weights.
func (c CheckConfig) disk(context.Context) []Finding {
	folder := cmp.Or(c.Getenv("HF_HOME"), filepath.Join(cmp.Or(c.Getenv("HOME"), "/root"), ".cache", "huggingface"))
	there := folder
	for {
		if _, err := os.Stat(there); err == nil || filepath.Dir(there) == there {
			break
		}
		there = filepath.Dir(there)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(there, &fs); err != nil {
		return one("disk", Note, fmt.Sprintf("%s cannot be looked at: %v", folder, err), "")
	}
	free := uint64(fs.Bavail) * uint64(fs.Bsize) / 1e9 //nolint:unconvert // The types differ between systems.
	detail := fmt.Sprintf("%d GB free for weights in %s", free, folder)
	if free < leastDiskGB {
		return one("disk", Bad, detail, fmt.Sprintf("make room: the smallest models need %d GB", leastDiskGB))
	}
	return one("disk", OK, detail, "")
}

// outside are the variables in which a provider tells its tenant how a port is reached.
var outside = []struct{ port, host string }{
	{"VAST_TCP_PORT_%s", "PUBLIC_IPADDR"}, {"RUNPOD_TCP_PORT_%s", "RUNPOD_PUBLIC_IP"},
}

func (c CheckConfig) port(ctx context.Context) []Finding {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", c.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return one("port", Bad, c.Listen+" is in use", "end what listens there, which may be an agent that serves; "+agentapi.EnvListen+" names another address")
	}
	if err != nil {
		return one("port", Bad, err.Error(), agentapi.EnvListen+" names another address")
	}
	_ = l.Close() // It was open to see that it can be.
	_, port, _ := net.SplitHostPort(c.Listen)
	for _, o := range outside {
		if mapped := c.Getenv(fmt.Sprintf(o.port, port)); mapped != "" {
			return one("port", OK, fmt.Sprintf("%s is free, reached from outside at %s", port,
				net.JoinHostPort(cmp.Or(c.Getenv(o.host), "?"), mapped)), "")
		}
	}
	return one("port", OK, port+" is free; whether it is reached from outside cannot be seen from here", "")
}

func (c CheckConfig) metadata(ctx context.Context) []Finding {
	m := metadata{base: strings.TrimSuffix(cmp.Or(c.Metadata, metadataAddress), "/"), client: metadataClient()}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	kinds := []struct {
		kind, name string
		there      func() bool
	}{
		{agentapi.NoticesAWS, "Amazon EC2's", func() bool {
			code, _, text, err := m.call(ctx, http.MethodPut, awsSession, "X-aws-ec2-metadata-token-ttl-seconds", "60")
			return err == nil && code == http.StatusOK && len(text) > 0
		}},
		{agentapi.NoticesGCP, "Google Compute Engine's", func() bool {
			code, header, _, err := m.call(ctx, http.MethodGet, gcpPreempted, "Metadata-Flavor", "Google")
			return err == nil && code == http.StatusOK && header.Get("Metadata-Flavor") == "Google"
		}},
		{agentapi.NoticesAzure, "Azure's", func() bool {
			code, _, text, err := m.call(ctx, http.MethodGet, azureName, "Metadata", "true")
			return err == nil && code == http.StatusOK && len(text) > 0
		}},
	}
	there := make([]bool, len(kinds))
	var wg sync.WaitGroup
	for i, k := range kinds {
		wg.Go(func() { there[i] = k.there() })
	}
	wg.Wait()
	for i, k := range kinds {
		switch {
		case !there[i]:
		case c.Boot != nil && c.Boot.Notices != k.kind:
			return one("metadata", Note, k.name+" answers, and the boot data name none or another", "")
		default:
			return one("metadata", OK, k.name+": interruptions are announced there", "")
		}
	}
	if c.Boot != nil && c.Boot.Notices != "" {
		return one("metadata", Note, "the service of "+c.Boot.Notices+", which the boot data name, does not answer", "an interruption comes without a word")
	}
	return one("metadata", Note, "none of Amazon, Google or Azure; a machine elsewhere is taken back without a word", "")
}

// selfEnd says whether a forgotten machine would end its own bill.
func (c CheckConfig) selfEnd(context.Context) []Finding {
	const name = "self-end"
	var how *agentapi.SelfEnd
	lease := ""
	switch {
	case c.Boot != nil:
		how = c.Boot.SelfEnd
		lease = fmt.Sprintf(", after %s without a call", time.Duration(c.Boot.LeaseSeconds)*time.Second)
		if c.Boot.LeaseSeconds <= 0 {
			return one(name, Note, "the boot data give no lease", "the controller or you must end this rental")
		}
	case c.Getenv(envVastKey) != "":
		how = &agentapi.SelfEnd{By: agentapi.SelfEndVastAI}
	case c.Getenv(envRunPodKey) != "" && c.Getenv(envRunPodID) != "":
		how = &agentapi.SelfEnd{By: agentapi.SelfEndRunPod}
	}
	if how == nil {
		return one(name, Note, "no way for this machine to end its own rental is known", "the controller or you must end it")
	}
	if _, err := newEnder(*how, Config{Getenv: c.Getenv, PowerOff: HostPowerOff}); err != nil {
		return one(name, Note, err.Error(), "the controller or you must end this rental")
	}
	if how.By == agentapi.SelfEndPowerOff && os.Geteuid() != 0 {
		return one(name, Note, "by power-off, which needs root", "run the agent as root")
	}
	return one(name, OK, "the machine can end its own rental (by "+how.By+")"+lease, "")
}
