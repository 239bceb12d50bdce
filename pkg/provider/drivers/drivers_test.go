package drivers

import (
	"strings"
	"testing"

	"github.com/munhq/gpuscale/pkg/provider"
)

// pairs are the drivers that need all of their names at once.
var pairs = map[provider.Name]bool{provider.Verda: true}

func TestEveryDriverIsReachableByEachOfItsNames(t *testing.T) {
	for name, d := range All() {
		if len(d.Env) == 0 {
			t.Errorf("%s reads no credentials", name)
		}
		for _, env := range d.Env {
			creds := map[string]string{env: "secret-" + env, "OTHER": "x"}
			if pairs[name] {
				for _, other := range d.Env {
					creds[other] = "secret-" + other
				}
			}
			p, err := New(name, creds, Options{})
			if err != nil || p.Name() != name {
				t.Errorf("%s with %s: %v, %v", name, env, p, err)
			}
		}
		_, err := New(name, map[string]string{"OTHER": "hunter2"}, Options{})
		if err == nil || !strings.Contains(err.Error(), d.Env[0]) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s without credentials: %v; want the name of what is missing", name, err)
		}
	}
}

func TestWhatIsNotBuiltSaysSo(t *testing.T) {
	for name, want := range map[provider.Name]string{
		provider.AWS: "not built in this release", provider.Azure: "not built", provider.GCP: "not built",
		"lambda": `there is no provider "lambda"`, "vastai": `there is no provider "vastai"`, "": "there is no provider",
	} {
		p, err := New(name, map[string]string{"api-key": "k"}, Options{})
		if p != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "vast.ai") {
			t.Errorf("%q: %v, %v; want %q and what there is", name, p, err, want)
		}
	}
}

func TestABadSettingFailsInTheConstructor(t *testing.T) {
	for _, c := range []struct {
		key  string
		opts Options
	}{{"a key", Options{}}, {"k", Options{BaseURL: "ftp://example.com"}}, {"k", Options{BaseURL: "console"}}} {
		if p, err := New(provider.VastAI, map[string]string{"api-key": c.key}, c.opts); p != nil || err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
