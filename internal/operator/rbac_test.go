package operator_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/munhq/gpuscale/internal/cloudsim/market"
	"github.com/munhq/gpuscale/internal/gateway"
	"github.com/munhq/gpuscale/internal/gatewayrun"
	"github.com/munhq/gpuscale/internal/localkube"
	"github.com/munhq/gpuscale/internal/localkube/localkubetest"
	"github.com/munhq/gpuscale/internal/operator"
)

// rulesFile has the rules that the chart's roles are made of.
const rulesFile = "deploy/helm/gpuscale/files/rbac.yaml"

// rules are the lists of rulesFile by the names that they have there.
type rules struct {
	Cluster        []rbacv1.PolicyRule `json:"cluster"`
	Secrets        []rbacv1.PolicyRule `json:"secrets"`
	Own            []rbacv1.PolicyRule `json:"own"`
	GatewayCluster []rbacv1.PolicyRule `json:"gatewayCluster"`
	GatewayOwn     []rbacv1.PolicyRule `json:"gatewayOwn"`
}

func readRules(t *testing.T) rules {
	t.Helper()
	root, err := localkube.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, rulesFile))
	if err != nil {
		t.Fatal(err)
	}
	var r rules
	if err := yaml.UnmarshalStrict(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// asController is the cluster as the chart's controller sees it: with its rights and no others. A request that they do
// not allow fails the test.
func (w *world) asController(config *rest.Config) *rest.Config {
	w.t.Helper()
	r := readRules(w.t)
	return w.as("gpuscale", slices.Concat(r.Cluster, r.Secrets), r.Own, config)
}

func (w *world) as(account string, wide, own []rbacv1.PolicyRule, config *rest.Config) *rest.Config {
	w.t.Helper()
	meta := metav1.ObjectMeta{Name: account + "-under-test"}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: secretNS}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: meta.Name}
	}
	here := metav1.ObjectMeta{Name: meta.Name, Namespace: secretNS}
	clusterRole, role := &rbacv1.ClusterRole{ObjectMeta: meta}, &rbacv1.Role{ObjectMeta: here}
	for _, o := range []struct {
		object client.Object
		fill   func()
	}{
		{clusterRole, func() { clusterRole.Rules = wide }},
		{role, func() { role.Rules = own }},
		{&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects}, func() {}},
		{&rbacv1.RoleBinding{ObjectMeta: here, RoleRef: ref("Role"), Subjects: subjects}, func() {}},
	} {
		if _, err := controllerutil.CreateOrUpdate(w.ctx, w.client, o.object, func() error { o.fill(); return nil }); err != nil {
			w.t.Fatal(err)
		}
	}
	out := rest.CopyConfig(config)
	out.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + secretNS + ":" + account, Groups: []string{
		"system:serviceaccounts", "system:serviceaccounts:" + secretNS, "system:authenticated"}}
	seen := &w.requests
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{next, account, seen} })
	return out
}

// request is one request to the API server as authorization sees it.
type request struct{ account, verb, group, resource, namespace, name string }

func (r request) String() string {
	return fmt.Sprintf("%s: %s %s in group %q, namespace %q, name %q", r.account, r.verb, r.resource, r.group, r.namespace, r.name)
}

// requests are those of one test.
type requests struct {
	mu     sync.Mutex
	seen   map[request]bool
	denied map[request]bool
	// starting is set while an API server comes up: it denies everybody until it has read the roles.
	starting bool
}

func (r *requests) whileStarting(is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting = is
}

func (r *requests) isStarting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starting
}

func (r *requests) note(q request, denied bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen, r.denied = map[request]bool{}, map[request]bool{}
	}
	r.seen[q] = true
	if denied {
		r.denied[q] = true
	}
}

// check fails the test for every request that the rules did not allow.
func (r *requests) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range r.denied {
		t.Errorf("%s does not allow %s", rulesFile, q)
	}
}

type recorder struct {
	next    http.RoundTripper
	account string
	seen    *requests
}

func (r recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	starting := r.seen.isStarting()
	resp, err := r.next.RoundTrip(req)
	if q, ok := requestOf(req); ok {
		q.account = r.account
		r.seen.note(q, err == nil && resp.StatusCode == http.StatusForbidden && !starting)
	}
	return resp, err
}

// requestOf reads a request's URL; false for what is not about a resource.
func requestOf(req *http.Request) (request, bool) {
	var q request
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		q.group, parts = parts[1], parts[3:]
	default:
		return q, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.resource = parts[0]
	if len(parts) > 1 {
		q.name = parts[1]
	}
	if len(parts) > 2 {
		q.resource += "/" + parts[2]
	}
	if name, ok := strings.CutPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name="); ok && q.name == "" {
		q.name = name // authorization looks at it too
	}
	q.verb = map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[req.Method]
	if req.Method == http.MethodGet {
		switch {
		case req.URL.Query().Get("watch") != "":
			q.verb = "watch"
		case len(parts) > 1:
			q.verb = "get"
		default:
			q.verb = "list"
		}
	}
	return q, true
}

// right is a verb on a resource, as rules give it; name is empty where the rule is not limited to names. An own right
// holds in the controller's namespace only.
type right struct {
	account, verb, group, resource, name string
	own                                  bool
}

func (r right) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s/%s %s", r.account, r.verb, r.group, r.resource, r.name))
}

// used reports whether some request needed the right.
func (r *requests) used(x right) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for q := range r.seen {
		if q.account == x.account && q.group == x.group && q.resource == x.resource && q.verb == x.verb &&
			(x.name == "" || q.name == x.name) && (!x.own || q.namespace == secretNS) {
			return true
		}
	}
	return false
}

// rights takes the rules apart.
func (r rules) rights() []right {
	return slices.Concat(rightsOf("gpuscale", false, slices.Concat(r.Cluster, r.Secrets)), rightsOf("gpuscale", true, r.Own),
		rightsOf("gpuscale-gateway", false, r.GatewayCluster), rightsOf("gpuscale-gateway", true, r.GatewayOwn))
}

func rightsOf(account string, own bool, given []rbacv1.PolicyRule) []right {
	var out []right
	for _, rule := range given {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						out = append(out, right{account, verb, group, resource, name, own})
					}
				}
			}
		}
	}
	return out
}

const streamed = "informers list where the API server cannot stream the first list of a watch"

// unseen are rights that this test does not come to use, with the reason why they are there.
var unseen = map[string]string{
	"gpuscale: update /secrets gpuscale-gateway-client": "the gateway's certificate is renewed after 45 days",
	"gpuscale: patch events.k8s.io/events":              "an event that repeats is counted on the first one; here none may",
	"gpuscale: list gpuscale.io/gpunodepools":           streamed,
	"gpuscale: list gpuscale.io/gpunodeclaims":          streamed,
	"gpuscale: list /pods":                              streamed,
	"gpuscale: list apps/replicasets":                   streamed,
	"gpuscale-gateway: list gpuscale.io/gpunodepools":   streamed,
	"gpuscale-gateway: list gpuscale.io/gpunodeclaims":  streamed,
}

// forgetLeader deletes the lease that an earlier test left behind: an election then begins with its creation.
func forgetLeader(t *testing.T) {
	t.Helper()
	c, err := client.New(localkubetest.Start(t).Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: secretNS, Name: "gpuscale-controller"}}
	if err := client.IgnoreNotFound(c.Delete(t.Context(), lease)); err != nil {
		t.Fatal(err)
	}
}

// TestEveryRightIsUsed walks controller and gateway through what they do and looks for rights in the chart that nothing
// needed. That none is missing is seen by every test here: they all run under these rules.
func TestEveryRightIsUsed(t *testing.T) {
	forgetLeader(t)
	w := start(t, []market.Offer{offer("1001"), offer("1002")}, elected)
	// Identities are made once per cluster, and another test may have been first.
	for _, name := range []string{"gpuscale-ca", "gpuscale-gateway-client"} {
		w.eventually("Secret "+name, func() error {
			return w.client.Get(w.ctx, client.ObjectKey{Namespace: secretNS, Name: name}, &corev1.Secret{})
		})
	}
	address := w.gateway(nil)
	w.pool()
	pod := w.pod("acme/tiny")
	w.podSays(pod, corev1.ConditionTrue, "Served")
	w.eventually("the gateway answers", func() error {
		resp, err := http.Get(address + "/v1/models")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
	w.remove(pod)
	w.eventually("the claim is gone", func() error {
		if n := len(w.claims()); n > 0 {
			return fmt.Errorf("%d claims", n)
		}
		return nil
	})
	given := readRules(t).rights()
	w.eventually("every right is used", func() error {
		var unused []string
		for _, r := range given {
			if !w.requests.used(r) && unseen[r.String()] == "" {
				unused = append(unused, r.String())
			}
		}
		if len(unused) > 0 {
			return fmt.Errorf("nothing used these rights of %s:\n%s", rulesFile, strings.Join(unused, "\n"))
		}
		return nil
	})
	for excused := range unseen {
		if !slices.ContainsFunc(given, func(r right) bool { return r.String() == excused }) {
			t.Errorf("%s is excused and no right any more", excused)
		}
	}
}

// elected runs the controllers as the chart does, and as on a new cluster.
func elected(w *world, _ *market.Config, _ *simOptions) {
	w.configure = func(c *operator.Config) {
		c.LeaderElection = true
		for _, name := range []string{"gpuscale-ca", "gpuscale-gateway-client"} {
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secretNS, Name: name}}
			if err := w.client.Delete(w.ctx, s); client.IgnoreNotFound(err) != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// gateway runs one under the chart's rules for it and returns its address.
func (w *world) gateway(keys map[string]gateway.Key, edits ...func(*gatewayrun.Config)) string {
	w.t.Helper()
	r := readRules(w.t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	log := logr.Discard()
	if w.log != nil {
		log = *w.log
	}
	cfg := gatewayrun.Config{Rest: w.as("gpuscale-gateway", r.GatewayCluster, r.GatewayOwn, w.admin), Namespace: secretNS, Listener: l,
		Keys: keys, Grace: time.Second, Log: log, Clock: clock.RealClock{}}
	for _, edit := range edits {
		edit(&cfg)
	}
	go func() { done <- gatewayrun.Run(ctx, cfg) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("gateway: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}
