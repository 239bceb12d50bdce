package bootstrap_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/pki"
)

var update = flag.Bool("update", false, "write the golden files")

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func params() bootstrap.Params {
	return bootstrap.Params{
		Image: "vllm/vllm-openai:v0.33.0",
		Agent: bootstrap.Agent{URL: "https://downloads.example/gpuscale-agent-linux-{arch}",
			SHA256: strings.Repeat("0A", 32), SHA256ARM64: strings.Repeat("0B", 32)},
		Boot: agentapi.Boot{
			Installation: "5f2c91ab", ClaimUID: "0b8f3e52-6f0d-4b54-9c62-1f0a6c1de3aa", ClaimName: "inference-qwen-0",
			CertPEM: "cert", KeyPEM: "key", CAPEM: "ca",
			GPUs: agentapi.GPUExpectation{Name: "RTX-4090", Count: 2, VRAMGB: 24},
		},
	}
}

func TestContainerGolden(t *testing.T) {
	inImage := params()
	inImage.Agent, inImage.Boot.Port = bootstrap.Agent{}, 8443
	for name, p := range map[string]bootstrap.Params{"fetched": params(), "in-image": inImage} {
		boot := must(bootstrap.Container(p))
		got := must(json.MarshalIndent(boot, "", "  "))
		path := filepath.Join("testdata", name+".golden.json")
		if *update {
			if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want := must(os.ReadFile(path)); string(want) != string(got)+"\n" {
			t.Errorf("%s differs from %s; run with -update and read the difference:\n%s", name, path, got)
		}
	}
}

func TestBootDataCarryTheIdentityWithRealCertificates(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ca := must(pki.NewCA("5f2c91ab", now))
	p := params()
	pair := must(ca.Worker(p.Boot.ClaimUID, time.Hour, now))
	p.Boot.CertPEM, p.Boot.KeyPEM, p.Boot.CAPEM = string(pair.CertPEM), string(pair.KeyPEM), string(ca.PEM())
	data := must(bootstrap.BootData(p))
	if len(data) > agentapi.MaxBootBytes/2 {
		t.Errorf("%d bytes: little room is left below %d", len(data), agentapi.MaxBootBytes)
	}
	var got agentapi.Boot
	if err := json.Unmarshal(must(base64.StdEncoding.DecodeString(data)), &got); err != nil {
		t.Fatal(err)
	}
	want := p.Boot
	want.Version, want.Port = 1, agentapi.DefaultPort
	if got != want {
		t.Errorf("boot data are %+v", got)
	}
	// Only the environment holds the key.
	boot := must(bootstrap.Container(p))
	if strings.Contains(strings.Join(boot.Command, " "), "PRIVATE") || boot.Env[agentapi.EnvBoot] != data {
		t.Errorf("container is %+v", boot)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for name, change := range map[string]func(*bootstrap.Params){
		"no image":        func(p *bootstrap.Params) { p.Image = "" },
		"no key":          func(p *bootstrap.Params) { p.Boot.KeyPEM = "" },
		"no claim":        func(p *bootstrap.Params) { p.Boot.ClaimUID = "" },
		"too long":        func(p *bootstrap.Params) { p.Boot.CAPEM = strings.Repeat("x", agentapi.MaxBootBytes) },
		"no hash":         func(p *bootstrap.Params) { p.Agent.SHA256 = "" },
		"short hash":      func(p *bootstrap.Params) { p.Agent.SHA256 = "abcd" },
		"hash of letters": func(p *bootstrap.Params) { p.Agent.SHA256 = strings.Repeat("zz", 32) },
		"arm hash alone":  func(p *bootstrap.Params) { p.Agent.SHA256 = "" },
		"arm, one URL":    func(p *bootstrap.Params) { p.Agent.URL = "https://example/agent" },
		"bad arm hash":    func(p *bootstrap.Params) { p.Agent.SHA256ARM64 = "none" },
		"two archs":       func(p *bootstrap.Params) { p.Agent.URL = "https://example/{arch}/{arch}" },
		"ftp":             func(p *bootstrap.Params) { p.Agent.URL = "ftp://example/agent" },
		"an option":       func(p *bootstrap.Params) { p.Agent.URL = "-K/etc/passwd" },
		"a quote":         func(p *bootstrap.Params) { p.Agent.URL = "https://example/a'b" },
		"a substitution":  func(p *bootstrap.Params) { p.Agent.URL = "https://example/$(reboot)" },
		"a line break":    func(p *bootstrap.Params) { p.Agent.URL = "https://example/a\nb" },
		"a password":      func(p *bootstrap.Params) { p.Agent.URL = "https://me:secret@example/agent" },
		"a long URL":      func(p *bootstrap.Params) { p.Agent.URL = "https://example/" + strings.Repeat("x", 4000) },
	} {
		p := params()
		change(&p)
		_, err := bootstrap.Container(p)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error says too much: %v", name, err)
		}
	}
}

func TestCommandSuitsEveryDriver(t *testing.T) {
	boot := must(bootstrap.Container(params()))
	if joined := strings.Join(boot.Command, " "); len(joined) > bootstrap.MaxCommandBytes || strings.Contains(joined, "'") {
		t.Errorf("command has %d bytes or a single quote:\n%s", len(joined), joined)
	}
	if slices.Contains(boot.Command, "") {
		t.Error("command has an empty word")
	}
}
