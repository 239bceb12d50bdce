package operator_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/munhq/gpuscale/api/v1alpha1"
	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/identity"
	"github.com/munhq/gpuscale/internal/operator"
)

// Secrets that the test plants, each known by its own mark.
const (
	markKey     = "marked-provider-key-5f1c9e\"<&>" // with what JSON and URLs write otherwise
	markEnv     = "marked-environment-key-77aa02"
	markHF      = "hf_markedtoken3b9d11"
	markGateway = "sk-marked-gateway-key-e4c8"
)

// TestSecretsAreToldNowhere plants secrets, lets much go wrong, and reads everything that is written for people or kept.
func TestSecretsAreToldNowhere(t *testing.T) {
	log := &logBook{}
	var ledgerFile string
	plant := func(w *world, _ *market.Config, facade *simOptions) {
		facade.Keys = []string{markKey, markEnv}
		w.log = new(log.logger())
		w.configure = func(c *operator.Config) {
			ctrl.SetLogger(*w.log)
			c.Log = *w.log
			c.Getenv = func(name string) string { return map[string]string{"VASTAI_API_KEY": markEnv}[name] }
			ledgerFile = strings.TrimPrefix(c.LedgerURL, "sqlite://")
		}
		var once atomic.Bool
		w.beforeCreate = func(*world) {
			if once.CompareAndSwap(false, true) {
				panic("planted: a reconcile breaks")
			}
		}
	}
	w := start(t, []market.Offer{offer("1001"), offer("1002"), offer("1003")}, plant)
	w.secret(markKey)
	hf := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "hf"}, StringData: map[string]string{"HF_TOKEN": markHF}}
	w.create(hf)
	address := w.gateway(map[string]gateway.Key{"alice": {Secret: markGateway}})

	pool := w.pool(func(p *v1alpha1.GPUNodePool) {
		p.Spec.Bootstrap.HFTokenSecret = &v1alpha1.SecretReference{Namespace: w.ns, Name: "hf"}
		env := p.Spec.Providers[0]
		env.APIKeySecret, env.CapacityType = nil, "on-demand"
		p.Spec.Providers = append(p.Spec.Providers, env)
	})
	w.market.FailNext("search", market.ServerError)
	w.market.FailNext("create", market.Truncated)
	w.market.FailNext("get", market.ServerError)
	pod, broken := w.pod("acme/tiny"), w.pod("sim/oom")
	w.podSays(pod, corev1.ConditionTrue, v1alpha1.PodReasonServed)
	w.podSays(broken, corev1.ConditionFalse, v1alpha1.PodReasonResting)
	var answers []string
	for _, key := range []string{markGateway, "wrong", markGateway + "x"} {
		answers = append(answers, ask(t, address, key))
	}
	w.market.DestroyRefused(2)
	w.remove(broken)
	w.remove(pod)
	w.eventually("everything bought is given back", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})

	// Keys that the provider refuses: its answer, which may repeat them, becomes a condition.
	w.secret(markKey + "-revoked")
	w.eventually("the pool hears of it", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		pool.Spec.Limits.MaxCostPerHour = pool.Spec.Limits.MaxCostPerHour.Add(pool.Spec.Providers[0].MaxPrice)
		return w.client.Update(w.ctx, pool)
	})
	w.poolSays(pool, v1alpha1.ConditionCredentialsValid, "False", v1alpha1.ReasonCredentialsBad)

	if !strings.Contains(log.String(), "planted: a reconcile breaks") {
		t.Error("no panic was logged: its output was not looked at")
	}
	secrets := map[string]string{"provider key": markKey, "key in the environment": markEnv, "Hugging Face token": markHF, "gateway key": markGateway}
	for name, s := range w.madeSecrets() {
		secrets[name] = s
	}
	places := map[string]string{"log": log.String(), "gateway's answers": strings.Join(answers, "\n"), "metrics": gathered(t), "process list": processes(t)}
	for name, text := range w.written() {
		places[name] = text
	}
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(ledgerFile + suffix)
		if err != nil || len(data) == 0 && suffix == "" {
			t.Errorf("ledger%s: %d bytes, %v", suffix, len(data), err)
		}
		places["ledger"+suffix] = string(data)
	}
	for place, text := range places {
		if len(text) == 0 {
			t.Errorf("%s: nothing to look at", place)
		}
		for name, secret := range secrets {
			if form, i := find(text, secret); i >= 0 {
				t.Errorf("%s: has the %s as %s: …%s", place, name, form, strings.ReplaceAll(text[max(0, i-200):i], secret, "***"))
			}
		}
		if i := strings.Index(text, "PRIVATE KEY-----"); i >= 0 {
			t.Errorf("%s: has a private key: %s", place, text[max(0, i-200):i])
		}
	}
}

// TestFindSeesEveryForm: a search that finds nothing would pass.
func TestFindSeesEveryForm(t *testing.T) {
	q, _ := json.Marshal(markKey)
	for _, text := range []string{markKey, string(q), url.QueryEscape(markKey), url.PathEscape(markKey), hex.EncodeToString([]byte(markKey)),
		base64.StdEncoding.EncodeToString([]byte(markKey)), fmt.Sprintf("%q", markKey), markKey + "\n"} {
		if _, i := find("before "+text+" after", markKey); i < 0 {
			t.Errorf("not found in %s", text)
		}
	}
}

// find looks for a secret in every form that something may have written it in.
func find(text, secret string) (form string, at int) {
	quoted, _ := json.Marshal(secret)
	inGo := fmt.Sprintf("%q", secret)
	for form, s := range map[string]string{
		"it is": secret, "JSON": strings.Trim(string(quoted), `"`), "Go": inGo[1 : len(inGo)-1], "a query": url.QueryEscape(secret),
		"a path": url.PathEscape(secret), "base64": base64.StdEncoding.EncodeToString([]byte(secret)),
		"base64 for URLs": base64.RawURLEncoding.EncodeToString([]byte(secret)), "hex": hex.EncodeToString([]byte(secret)),
	} {
		if i := strings.Index(text, s); i >= 0 {
			return form, i
		}
	}
	return "", -1
}

// everyVerbosity is below 8, from where on client-go dumps the bodies of what it sends and receives, Secrets too. The
// program logs at 0 and has no flag for more.
const everyVerbosity = 7

// logBook keeps every line at every verbosity.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		fmt.Fprintln(&l.text, prefix, args)
	}, funcr.Options{Verbosity: everyVerbosity})
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// madeSecrets are the keys that gpuscale made itself, a line in the middle of each.
func (w *world) madeSecrets() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for name, key := range map[string]string{identity.SecretCA: "ca.key", identity.SecretGateway: "tls.key"} {
		s := &corev1.Secret{}
		if err := w.client.Get(w.ctx, client.ObjectKey{Namespace: secretNS, Name: name}, s); err != nil {
			w.t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(s.Data[key])), "\n")
		if len(lines) < 3 {
			w.t.Fatalf("%s has no key in %s", name, key)
		}
		out["key of "+name] = lines[1]
	}
	return out
}

// written is every object but Secrets that gpuscale reads or writes, as the API shows it, and every last state of claims
// that are gone.
func (w *world) written() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for name, list := range map[string]client.ObjectList{"pods": &corev1.PodList{}, "pools": &v1alpha1.GPUNodePoolList{},
		"events": &eventsv1.EventList{}, "config maps": &corev1.ConfigMapList{}} {
		if err := w.client.List(w.ctx, list); err != nil {
			w.t.Fatal(err)
		}
		out[name] = marshal(w.t, list)
	}
	out["claims"] = marshal(w.t, w.watch.Ended())
	return out
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func gathered(t *testing.T) string {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

// processes is what every user of the machine sees of this test's processes and their children.
func processes(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil { // it may have ended
			all = append(all, data)
		}
	}
	slices.SortFunc(all, bytes.Compare)
	return string(bytes.ReplaceAll(bytes.Join(all, []byte("\n")), []byte{0}, []byte(" ")))
}

func ask(t *testing.T, address, key string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.Status + " " + string(body)
}
