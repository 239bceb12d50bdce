package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/munhq/gpuscale/internal/gateway"
)

func TestParseKeys(t *testing.T) {
	const secret = "sk-very-secret"
	for name, c := range map[string]struct {
		text string
		want map[string]gateway.Key // nil for an error
	}{
		"two, a comment and an empty line": {"# keys\nalice = sk-1\n\nbob=sk=2\n",
			map[string]gateway.Key{"alice": {Secret: "sk-1"}, "bob": {Secret: "sk=2"}}},
		"a limit":          {"alice=sk-1\tconcurrency=8", map[string]gateway.Key{"alice": {Secret: "sk-1", Concurrency: 8}}},
		"nothing":          {"\n# none\n", nil},
		"no name":          {"=" + secret, nil},
		"no sign":          {secret, nil},
		"no key":           {"alice=", nil},
		"a name twice":     {"alice=" + secret + "\nalice=" + secret, nil},
		"another option":   {"alice=" + secret + " rate=8", nil},
		"a limit of none":  {"alice=" + secret + " concurrency=0", nil},
		"no number":        {"alice=" + secret + " concurrency=x", nil},
		"a key with space": {"alice=" + secret + " " + secret, nil},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := gateway.ParseKeys(c.text)
			if len(keys) != len(c.want) || (err == nil) != (c.want != nil) {
				t.Errorf("%v, %v", keys, err)
			}
			for name, want := range c.want {
				if keys[name] != want {
					t.Errorf("%s: %v", name, keys[name])
				}
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats a key: %v", err)
			}
		})
	}
}

func TestAKeyHasOnlySoManyRequestsUnderWay(t *testing.T) {
	w := newWorld(t, func(c *gateway.Config) {
		c.Keys = map[string]gateway.Key{"alice": {Secret: "sk-alice", Concurrency: 2}, "bob": {Secret: "sk-bob"}}
	})
	a := w.add(nil)
	held := make(chan struct{})
	a.hook(func(http.ResponseWriter, *http.Request) bool { <-held; return false })
	as := func(key string) answer { return w.ask(chatPath, chat(""), "Authorization", "Bearer "+key) }
	answers := make(chan answer, 3)
	for _, key := range []string{"sk-alice", "sk-alice", "sk-bob"} {
		go func() { answers <- as(key) }()
	}
	eventually(t, "they are under way", func() bool { return a.requests.Load() == 3 })
	w.wantMetric(`gpuscale_gateway_key_in_flight{key="alice"} 2`)

	got := as("sk-alice")
	wantError(t, got, http.StatusTooManyRequests, "concurrency_limit")
	if got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if list := w.get("/v1/models", "Authorization", "Bearer sk-alice"); list.status != http.StatusOK {
		t.Errorf("the list of models counts: %d", list.status)
	}
	w.wantMetric(`gpuscale_gateway_key_rejections_total{key="alice",reason="concurrency"} 1`)

	// Another secret does not make it less busy, a higher limit makes room.
	if err := w.gw.SetKeys(map[string]gateway.Key{"alice": {Secret: "sk-new", Concurrency: 2}}); err != nil {
		t.Fatal(err)
	}
	wantError(t, as("sk-new"), http.StatusTooManyRequests, "concurrency_limit")
	wantError(t, as("sk-alice"), http.StatusUnauthorized, "invalid_api_key")
	wantError(t, as("sk-bob"), http.StatusUnauthorized, "invalid_api_key")
	if w.gw.SetKeys(nil) == nil || w.gw.SetKeys(map[string]gateway.Key{"alice": {}}) == nil {
		t.Error("no keys, or an empty one, are accepted")
	}
	close(held)
	for range 3 {
		if got := <-answers; got.status != http.StatusOK {
			t.Errorf("%d %q", got.status, got.text)
		}
	}
	if got := as("sk-new"); got.status != http.StatusOK {
		t.Errorf("with the others ended: %d", got.status)
	}
	w.wantMetric(`gpuscale_gateway_key_in_flight{key="alice"} 0`)
	w.wantMetric(`gpuscale_gateway_key_rejections_total{key="",reason="invalid_key"} 2`)
}
