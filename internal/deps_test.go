package internal

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// ban forbids imports. Patterns are import paths, ours written ./path; /... is the package and all below it, * one
// path element. Test files are free: a driver's test runs against its façade.
type ban struct {
	who     []string
	not     []string // packages that who matches and that are free
	what    []string
	except  []string
	through bool // also what is imported through others, of ours or not
	why     string

	// plant is an offence, "package imports import", that the checker has to find: the packages may not exist yet, and
	// a rule that can match nothing would go unnoticed.
	plant [2]string
}

var (
	kubernetes = []string{"k8s.io/...", "sigs.k8s.io/..."}
	clients    = []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/..."}
	cloudSDKs  = []string{
		"github.com/aws/...", "github.com/Azure/...", "cloud.google.com/go/...", "google.golang.org/api/...",
		"./pkg/provider/aws/...", "./pkg/provider/azure/...", "./pkg/provider/gcp/...",
	}
	drivers    = []string{"./pkg/provider/*/..."}
	notDrivers = []string{"./pkg/provider/rest/...", "./pkg/provider/providertest/...", "./pkg/provider/drivers"}
)

var bans = []ban{
	{
		who: []string{"./api/..."}, what: kubernetes, except: []string{"k8s.io/apimachinery/..."},
		why:   "whoever reads our objects should not have to take a client with them",
		plant: [2]string{"./api/v1alpha1", "sigs.k8s.io/controller-runtime/pkg/scheme"},
	},
	{
		who: []string{"./api/..."}, what: []string{"./..."}, except: []string{"./api/...", "./pkg/money"},
		why:   "the API types are a contract of their own; providers and controllers change faster",
		plant: [2]string{"./api/v1alpha1", "./pkg/provider"},
	},
	{
		who: []string{"./pkg/provider/..."}, what: append([]string{"./api/..."}, kubernetes...), through: true,
		why:   "the provider layer is used outside Kubernetes too",
		plant: [2]string{"./pkg/provider", "k8s.io/apimachinery/pkg/types"},
	},
	{
		who: []string{"./pkg/money/...", "./pkg/gpu/..."}, what: []string{"./..."},
		why:   "everything stands on these two, and neither needs the other",
		plant: [2]string{"./pkg/gpu", "./pkg/money"},
	},
	{
		who: []string{"./internal/planner/...", "./internal/offers/rest/..."}, what: clients, through: true,
		why:   "a decision is a function of its snapshot: no way to look anything up",
		plant: [2]string{"./internal/planner", "k8s.io/client-go/kubernetes"},
	},
	{
		who: []string{"./internal/planner/...", "./internal/offers/rest/..."}, what: []string{"net/http", "context"},
		why:   "a decision is a function of its snapshot: it waits for nothing and cannot be cancelled",
		plant: [2]string{"./internal/offers/rest", "context"},
	},
	{
		who: drivers, not: notDrivers, what: []string{"./..."},
		except: []string{"./pkg/provider", "./pkg/provider/*/...", "./pkg/money", "./pkg/gpu"},
		why:    "a driver only translates between a vendor and the provider interface",
		plant:  [2]string{"./pkg/provider/verda", "./internal/offers"},
	},
	{
		who: []string{"./internal/cloudsim/..."}, not: []string{"./internal/cloudsim/cloudsimtest" /* tests' */}, what: drivers,
		why:   "a façade that shared code with the driver would share its mistakes, and the tests would see none",
		plant: [2]string{"./internal/cloudsim/verda", "./pkg/provider/verda"},
	},
	{
		who: []string{"./..."}, not: []string{"./internal/cloudsim/...", "./internal/localstack/...", "./cmd/..."},
		what:  []string{"./internal/cloudsim/..."},
		why:   "nothing that spends money may know the simulation",
		plant: [2]string{"./pkg/provider/verda", "./internal/cloudsim/verda"},
	},
	{
		who: []string{"./..."}, what: []string{"text/template", "html/template"},
		why: "a template may call any method by its name: a program that can execute one keeps all methods of all types, " +
			"which made the controller's a third larger, resident too",
		plant: [2]string{"./internal/bootstrap", "text/template"},
	},
	{
		who:  []string{"./internal/agent/...", "./internal/agentapi/...", "./cmd/gpuscale-agent/..."},
		what: append(slices.Clone(clients), cloudSDKs...), through: true,
		why:   "the agent is fetched by every machine while it is paid for, and holds no credentials to use them with",
		plant: [2]string{"./cmd/gpuscale-agent", "sigs.k8s.io/controller-runtime"},
	},
}

// sibling rules: the folders directly below parent do not import each other, but all may import those in shared.
type sibling struct {
	parent string
	shared []string
	free   []string // folders that may import the others
	why    string
	plant  [2]string
}

var siblings = []sibling{
	{
		parent: "./pkg/provider", shared: []string{"rest"}, free: []string{"providertest", "drivers" /* the list of them */},
		why:   "a provider is a folder that can be deleted",
		plant: [2]string{"./pkg/provider/runpod", "./pkg/provider/vastai/wire"},
	},
	{
		parent: "./internal/controller",
		why:    "controllers meet in the API objects; a call between them would hide what a restart loses",
		plant:  [2]string{"./internal/controller/disruption", "./internal/controller/claim"},
	},
}

func TestImportRules(t *testing.T) {
	repo := repository(t, true)
	for _, offence := range checkImports(repo, bans, siblings) {
		t.Error(offence)
	}
	for _, b := range bans {
		for _, who := range b.who {
			if !slices.ContainsFunc(repo.paths(), func(p string) bool { return matches(who, p) }) {
				t.Logf("nothing to check yet: %s", who)
			}
		}
	}
	for _, s := range siblings {
		if !slices.ContainsFunc(repo.paths(), func(p string) bool { return matches(s.parent+"/*", p) }) {
			t.Logf("nothing to check yet: %s/*", s.parent)
		}
	}
}

func TestImportRulesCatchTheirOffence(t *testing.T) {
	for _, b := range bans {
		if got := checkImports(planted(t, b.plant), []ban{b}, nil); len(got) != 1 {
			t.Errorf("%s importing %s: %d offences found by the rule %q", b.plant[0], b.plant[1], len(got), b.why)
		}
		if !b.through {
			continue
		}
		// The same one hop away, in our code and in another module's.
		hop := loadTree(t, fstest.MapFS{
			goFile(b.plant[0]): source("p", module+"/internal/hop"), "internal/hop/x.go": source("hop", theirs(b.plant[1])),
		})
		if got := checkImports(hop, []ban{b}, nil); len(got) != 1 || !strings.Contains(got[0], "./internal/hop") {
			t.Errorf("through our own package: %q", got)
		}
		deep := loadTree(t, fstest.MapFS{goFile(b.plant[0]): source("p", "example.com/x")})
		deep.deps = map[string][]string{b.plant[0]: {"example.com/x", b.plant[1]}}
		if got := checkImports(deep, []ban{b}, nil); len(got) != 1 {
			t.Errorf("through another module: %q", got)
		}
	}
	for _, s := range siblings {
		if got := checkImports(planted(t, s.plant), nil, []sibling{s}); len(got) != 1 {
			t.Errorf("%s importing %s: %d offences found by the rule %q", s.plant[0], s.plant[1], len(got), s.why)
		}
	}
}

func TestImportRulesLetTheRestPass(t *testing.T) {
	for _, fine := range [][2]string{
		{"./api/v1alpha1", "k8s.io/apimachinery/pkg/apis/meta/v1"}, {"./api/v1alpha1", "./pkg/money"},
		{"./pkg/provider/aws", "github.com/aws/aws-sdk-go-v2/service/ec2"}, {"./pkg/provider/runpod", "./pkg/provider/rest"},
		{"./pkg/provider/runpod", "./pkg/provider/runpod/wire"}, {"./pkg/provider/runpod", "./pkg/gpu"}, {"./pkg/provider/runpod", "net/http"},
		{"./internal/planner", "./api/v1alpha1"}, {"./internal/controller/claim", "./internal/offers"},
		{"./internal/controller/claim", "./internal/controller/claim/steps"}, {"./cmd/gpuscale", "./internal/cloudsim/market"},
		{"./internal/localstack", "./internal/cloudsim/market"}, {"./pkg/provider/drivers", "./pkg/provider/aws"}, {"./internal/agent", "net/http"}, {"./internal/agent/front", "./internal/agentapi"},
	} {
		if got := checkImports(planted(t, fine), bans, siblings); len(got) != 0 {
			t.Errorf("%s importing %s: %q", fine[0], fine[1], got)
		}
	}
}

func planted(t *testing.T, offence [2]string) *tree {
	t.Helper()
	return loadTree(t, fstest.MapFS{goFile(offence[0]): source("p", theirs(offence[1]))})
}

func goFile(pkgPath string) string { return strings.TrimPrefix(pkgPath, "./") + "/x.go" }

func theirs(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, "./"); ok {
		return module + "/" + rest
	}
	return importPath
}

func source(name, imported string) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, "package %s\n\nimport _ %q\n", name, imported)}
}

// checkImports returns an offence per package and import.
func checkImports(repo *tree, bans []ban, siblings []sibling) []string {
	var out []string
	for _, p := range repo.paths() {
		for _, b := range bans {
			if matchesAny(b.who, p) && !matchesAny(b.not, p) {
				out = append(out, b.check(repo, p)...)
			}
		}
		for _, s := range siblings {
			out = append(out, s.check(repo.packages[p])...)
		}
	}
	return out
}

func (b ban) check(repo *tree, p string) []string {
	var out []string
	for imported, chain := range reached(repo, p, b.through) {
		if imported != p && matchesAny(b.what, imported) && !matchesAny(b.except, imported) {
			out = append(out, fmt.Sprintf("%s: %s", chain, b.why))
		}
	}
	if b.through && len(out) > 1 {
		// One cause usually brings a hundred packages in; the shortest way to one of them is what helps.
		slices.SortFunc(out, func(x, y string) int { return len(x) - len(y) })
		out = append(out[:1], fmt.Sprintf("%s: and %d more imports of that kind", p, len(out)-1))
	}
	slices.Sort(out)
	return out
}

// reached maps what p imports to how: directly, or through our own packages and then through others.
func reached(repo *tree, p string, through bool) map[string]string {
	out := map[string]string{}
	queue := []string{p}
	for chain := map[string]string{p: p}; len(queue) > 0; queue = queue[1:] {
		for _, imported := range repo.packages[queue[0]].imports() {
			if _, seen := out[imported]; seen {
				continue
			}
			out[imported] = chain[queue[0]] + " imports " + imported
			if through && repo.packages[imported] != nil {
				chain[imported] = out[imported] + ", which"
				queue = append(queue, imported)
			}
		}
	}
	if through {
		for _, dep := range repo.deps[p] {
			if out[dep] == "" {
				out[dep] = p + " needs, through another module, " + dep
			}
		}
	}
	return out
}

func (s sibling) check(p *pkg) []string {
	own, ok := folderBelow(s.parent, p.path)
	if !ok || slices.Contains(s.free, own) {
		return nil
	}
	var out []string
	for _, imported := range p.imports() {
		other, ok := folderBelow(s.parent, imported)
		if ok && other != own && !slices.Contains(s.shared, other) {
			out = append(out, fmt.Sprintf("%s imports %s: %s", p.path, imported, s.why))
		}
	}
	return out
}

// folderBelow returns the first path element of p below parent.
func folderBelow(parent, p string) (string, bool) {
	rest, ok := strings.CutPrefix(p, parent+"/")
	first, _, _ := strings.Cut(rest, "/")
	return first, ok
}

func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, p) })
}

func matches(pattern, p string) bool {
	expr := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `[^/]+`)
	if head, ok := strings.CutSuffix(expr, `/\.\.\.`); ok {
		expr = head + `(/.*)?`
	}
	return regexp.MustCompile(`^` + expr + `$`).MatchString(p)
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"./pkg/provider", "./pkg/provider", true}, {"./pkg/provider", "./pkg/provider/aws", false},
		{"./pkg/provider/...", "./pkg/provider", true}, {"./pkg/provider/...", "./pkg/providers", false},
		{"./pkg/provider/*/...", "./pkg/provider", false}, {"./pkg/provider/*/...", "./pkg/provider/aws/x", true},
		{"./...", "./pkg/money", true}, {"./...", "k8s.io/api", false}, {"net/http", "net/http/httptest", false},
		{"k8s.io/...", "sigs.k8s.io/yaml", false}, {"k8s.io/...", "k8sXio/api", false},
	} {
		if matches(c.pattern, c.path) != c.want {
			t.Errorf("%s matches %s: %v", c.pattern, c.path, !c.want)
		}
	}
}
