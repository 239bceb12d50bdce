package bootstrap_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	agentpkg "github.com/munhq/gpuscale/internal/agent"
	"github.com/munhq/gpuscale/internal/agentapi"
	"github.com/munhq/gpuscale/internal/bootstrap"
	"github.com/munhq/gpuscale/internal/bootstrap/boottest"
	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/pki"
	"github.com/munhq/gpuscale/pkg/provider"
)

// offParams are those of a machine that ends its rental by turning itself off.
func offParams() bootstrap.Params {
	p := params()
	p.Boot.SelfEnd = &agentapi.SelfEnd{By: agentapi.SelfEndPowerOff}
	return p
}

func TestVMGolden(t *testing.T) {
	for name, p := range map[string]bootstrap.Params{"vm": params(), "vm-power-off": offParams()} {
		boot := must(bootstrap.VM(p))
		path := filepath.Join("testdata", name+".golden.sh")
		if *update {
			if err := os.WriteFile(path, []byte(boot.UserData), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want := string(must(os.ReadFile(path))); want != boot.UserData {
			t.Errorf("%s differs from %s; run with -update and read the difference:\n%s", name, path, boot.UserData)
		}
		if !strings.HasPrefix(boot.UserData, "#!/bin/bash\n") || boot.Command != nil || boot.Env != nil ||
			boot.Image != p.Image || boot.Port != agentapi.DefaultPort {
			t.Errorf("%s is %+v", name, boot)
		}
		if err := boottest.Bash(t.Context(), boot.UserData); err != nil {
			t.Error(err)
		}
	}
}

// TestVMInCloudConfig: wrapped as for clouds that take a #cloud-config only, it is one.
func TestVMInCloudConfig(t *testing.T) {
	wrapped := must(json.Marshal(map[string]any{
		"write_files": []any{map[string]any{"path": "/var/lib/gpuscale.sh", "permissions": "0700", "owner": "root:root",
			"content": must(bootstrap.VM(params())).UserData}},
		"runcmd": []any{[]string{"/bin/bash", "/var/lib/gpuscale.sh"}},
	}))
	if err := boottest.CloudConfig(t.Context(), "#cloud-config\n"+string(wrapped)+"\n"); err != nil {
		t.Error(err)
	}
}

// machine is a folder in the place of a machine's root, and a PATH for it with a systemctl that notes what it is told.
type machine struct {
	root, path, told string
}

func newMachine(t *testing.T, programs ...string) machine {
	m := machine{root: t.TempDir(), path: pathWith(t, append([]string{"bash", "cat", "mv", "rmdir", "id"}, append(coreutils, programs...)...)...)}
	m.told = filepath.Join(m.root, "told")
	m.fake(t, "systemctl", `echo "$@" >>`+m.told)
	return m
}

func (m machine) fake(t *testing.T, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.path, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// boot runs the script as cloud-init would: the file itself, as root of its own folder.
func (m machine) boot(t *testing.T, p bootstrap.Params) (string, int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "part-001")
	if err := os.WriteFile(file, []byte(must(bootstrap.VM(p)).UserData), 0o700); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), file)
	command.Env = []string{"PATH=" + m.path, "GPUSCALE_ROOT=" + m.root, "GPUSCALE_FETCH_TRIES=1"}
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), command.ProcessState.ExitCode()
}

func (m machine) systemctl(t *testing.T) string {
	t.Helper()
	told, err := os.ReadFile(m.told)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(told)
}

// served is what a machine would fetch.
func served(t *testing.T, p bootstrap.Params) bootstrap.Params {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(program)) })
	p.Agent = bootstrap.Agent{URL: url, SHA256: sumOf(program)}
	return p
}

const program = "#!/bin/sh\necho agent ran with \"$@\"\n"

func TestAVMStartsItsAgent(t *testing.T) {
	for _, fetcher := range fetchers {
		t.Run(fetcher, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, fetcher)
			p := served(t, params())
			for range 2 { // It may be run again.
				out, code := m.boot(t, p)
				if code != 0 || out != "" {
					t.Fatalf("exit %d, %q", code, out)
				}
			}
			const once = "daemon-reload\nenable gpuscale-agent.service\n--no-block restart gpuscale-agent.service\n"
			if got := m.systemctl(t); got != once+once {
				t.Errorf("systemd was told %q", got)
			}
			m.look(t, p)
		})
	}
}

// look checks what a boot left on the machine.
func (m machine) look(t *testing.T, p bootstrap.Params) {
	t.Helper()
	home := filepath.Join(m.root, "var/lib/gpuscale")
	for name, mode := range map[string]os.FileMode{"": 0o700, "boot": 0o600, "gpuscale-agent": 0o755, "huggingface": 0o700} {
		if info, err := os.Stat(filepath.Join(home, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if left := must(os.ReadDir(home)); len(left) != 3 {
		t.Errorf("left behind: %v", left)
	}
	boot, err := agentpkg.DecodeBoot(string(must(os.ReadFile(filepath.Join(home, "boot")))))
	want := p.Boot
	want.Version, want.Port, want.Image = 1, agentapi.DefaultPort, p.Image
	if err != nil || boot != want {
		t.Errorf("boot data are %+v, %v", boot, err)
	}
	unit := string(must(os.ReadFile(filepath.Join(m.root, "etc/systemd/system/gpuscale-agent.service"))))
	if err := boottest.Unit(t.Context(), "gpuscale-agent.service", unit); err != nil {
		t.Error(err)
	}
	start := fmt.Sprintf("ExecStart=%s/gpuscale-agent --boot-file %s/boot\n", home, home)
	if !strings.Contains(unit, start) || strings.Contains(unit, "PRIVATE") {
		t.Errorf("unit is\n%s", unit)
	}
	ran, err := exec.CommandContext(t.Context(), filepath.Join(home, "gpuscale-agent"), "hello").Output()
	if err != nil || string(ran) != "agent ran with hello\n" {
		t.Errorf("agent said %q, %v", ran, err)
	}
}

func TestAVMWithoutAnAgentSaysSoAndTurnsItselfOff(t *testing.T) {
	for _, off := range []bool{false, true} {
		p := params()
		if off {
			p = offParams()
		}
		for name, c := range map[string]struct {
			change func(*machine, *bootstrap.Params)
			code   int
		}{
			"not there": {func(_ *machine, p *bootstrap.Params) {
				p.Agent.URL = serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) })
			}, bootstrap.ExitNotFetched},
			"other file": {func(_ *machine, p *bootstrap.Params) { p.Agent.SHA256 = strings.Repeat("00", 32) }, bootstrap.ExitWrongHash},
			"no folder": {func(m *machine, _ *bootstrap.Params) {
				if err := os.WriteFile(filepath.Join(m.root, "var"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}, bootstrap.ExitNoFolder},
		} {
			m, p := newMachine(t, "curl"), served(t, p)
			c.change(&m, &p)
			out, code := m.boot(t, p)
			want := ""
			if off {
				want = "poweroff\n"
			}
			if told := m.systemctl(t); code != c.code || !strings.Contains(out, "gpuscale: no agent was started: ") || told != want {
				t.Errorf("%s: exit %d, %q, systemd was told %q", name, code, out, told)
			}
		}
	}
	m := newMachine(t, "curl")
	if err := os.Remove(filepath.Join(m.path, "systemctl")); err != nil {
		t.Fatal(err)
	}
	if out, code := m.boot(t, served(t, params())); code != bootstrap.ExitNoSystemd {
		t.Errorf("without systemd: exit %d, %q", code, out)
	}
}

// TestBodiesReadTheScript: the simulated machine finds the boot data where the script has them.
func TestBodiesReadTheScript(t *testing.T) {
	spec := body.Spec{UserData: must(bootstrap.VM(params())).UserData}
	boot, err := agentpkg.DecodeBoot(spec.BootData())
	if err != nil || boot.ClaimUID != params().Boot.ClaimUID || boot.Image != params().Image {
		t.Errorf("%+v, %v", boot, err)
	}
}

func TestVMRefusesNonsense(t *testing.T) {
	for name, change := range map[string]func(*bootstrap.Params){
		"no image":   func(p *bootstrap.Params) { p.Image = "" },
		"an option":  func(p *bootstrap.Params) { p.Image = "--privileged" },
		"two words":  func(p *bootstrap.Params) { p.Image = "a b" },
		"no agent":   func(p *bootstrap.Params) { p.Agent = bootstrap.Agent{} },
		"no hash":    func(p *bootstrap.Params) { p.Agent.SHA256 = "" },
		"a quote":    func(p *bootstrap.Params) { p.Agent.URL = "https://example/a'b" },
		"no key":     func(p *bootstrap.Params) { p.Boot.KeyPEM = "" },
		"a line end": func(p *bootstrap.Params) { p.Agent.URL = "https://example/a\nreboot" },
	} {
		p := params()
		change(&p)
		if boot, err := bootstrap.VM(p); err == nil || boot.UserData != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVMFitsEveryProvider: with real certificates there is room below the 16 KB that clouds take at the least.
func TestVMFitsEveryProvider(t *testing.T) {
	const least = 16 << 10
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ca := must(pki.NewCA("5f2c91ab", now))
	p := offParams()
	pair := must(ca.Worker(p.Boot.ClaimUID, time.Hour, now))
	p.Boot.CertPEM, p.Boot.KeyPEM, p.Boot.CAPEM = string(pair.CertPEM), string(pair.KeyPEM), string(ca.PEM())
	boot := must(bootstrap.VM(p))
	if n := len(boot.UserData); n > least*3/4 {
		t.Errorf("%d bytes: little room is left below %d", n, least)
	}
	if strings.Contains(boot.UserData, "PRIVATE") {
		t.Error("the key can be read at a glance")
	}
}

func TestForIsWhatTheProviderRents(t *testing.T) {
	whole := must(bootstrap.VM(params()))
	vm := provider.Capabilities{Boot: provider.BootVM, BootDataLimit: len(whole.UserData)}
	if got := must(bootstrap.For(vm, params())); got.UserData != whole.UserData {
		t.Errorf("for a VM: %+v", got)
	}
	vm.BootDataLimit--
	if _, err := bootstrap.For(vm, params()); err == nil || !strings.Contains(err.Error(), fmt.Sprint(vm.BootDataLimit)) {
		t.Errorf("over the limit: %v", err)
	}
	if got := must(bootstrap.For(provider.Capabilities{Boot: provider.BootContainer}, params())); got.UserData != "" || len(got.Command) == 0 {
		t.Errorf("for a container: %+v", got)
	}
}
