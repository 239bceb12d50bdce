package tensordock

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/munhq/gpuscale/pkg/money"
	"github.com/munhq/gpuscale/pkg/provider"
)

// vm is the example of the reference, with one value replaced.
func vm(old, new string) string {
	return strings.Replace(`{"type":"virtualmachine","id":"`+vmID+`","name":"gs-a-1","status":"running",
 "ipAddress":"198.51.100.7","portForwards":[{"internal_port":22,"external_port":20456},{"internal_port":9443,"external_port":20457}],
 "resources":{"vcpu_count":8,"ram_gb":32,"storage_gb":150,
  "gpus":{"geforcertx4090-pcie-24gb":{"count":2,"v0Name":"geforcertx4090-pcie-24gb"}}},"rateHourly":0.4455}`, old, new, 1)
}

func TestAnInstanceAsItIsTold(t *testing.T) {
	want := provider.Instance{
		Provider: provider.TensorDock, ID: vmID, Tag: "gs-a-1", State: provider.StateRunning, Message: "running",
		CapacityType: provider.OnDemand, GPU: "RTX4090", GPUCount: 2, Price: to(money.MustParse("0.4455")), Address: "198.51.100.7", Port: 20457,
		RestKeys: []provider.RestKey{"gpu/" + slug},
	}
	more := want
	more.CreatedAt = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	more.RestKeys = []provider.RestKey{"machine/h1", "location/l1/" + slug, "gpu/" + slug}
	inner := strings.Replace(vm(`"type":"virtualmachine","id":"`+vmID+`",`, ``), "{", `{"type":"virtualmachine","id":"`+vmID+`","attributes":{`, 1) + "}"
	for name, c := range map[string]struct {
		body string
		want provider.Instance
	}{
		"flat": {vm("", ""), want}, "wrapped": {`{"data":` + vm("", "") + `}`, want}, "attributes": {inner, want}, "both": {`{"data":` + inner + `}`, want},
		"more": {vm(`"status"`, `"created_at":"2026-08-01T14:00:00+02:00","hostnode_id":"h1","location_id":"l1","status"`), more},
	} {
		p, s := scripted(t, ok(c.body))
		got, err := p.GetInstance(t.Context(), vmID)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got  %+v, %v\nwant %+v", name, got, err, c.want)
		}
		if g := s.got[0]; g.method != "GET" || g.path != "/api/v2/instances/"+vmID || g.query != "" {
			t.Errorf("sent %+v", g)
		}
	}
}

func TestInstanceStates(t *testing.T) {
	for word, want := range map[string]struct {
		state       provider.State
		interrupted bool
	}{
		"queued": {provider.StatePending, false}, "pending": {provider.StatePending, false}, "provisioning": {provider.StatePending, false},
		"creating": {provider.StatePending, false}, "starting": {provider.StatePending, false}, "running": {provider.StateRunning, false},
		"Running": {provider.StateRunning, false}, "stopping": {provider.StateStopped, false}, "stopped": {provider.StateStopped, false},
		"stoppeddisassociated": {provider.StateStopped, true}, "Stopped_Disassociated": {provider.StateStopped, true},
		"stopped - disassociated": {provider.StateStopped, true}, "Outbid": {provider.StateStopped, true},
		"deleting": {provider.StateEnding, false}, "error": {provider.StateFailed, false},
		"hibernating": {provider.StateUnknown, false}, "": {provider.StateUnknown, false}, "stoppedish": {provider.StateUnknown, false},
	} {
		p, _ := scripted(t, ok(vm(`"running"`, `"`+word+`"`)))
		got, err := p.GetInstance(t.Context(), vmID)
		if err != nil || got.State != want.state || got.Interrupted != want.interrupted {
			t.Errorf("%q: %s, interrupted %v, %v; want %+v", word, got.State, got.Interrupted, err, want)
		}
		if runs := got.State == provider.StateRunning; (got.Price != nil) != runs || (got.Port != 0) != runs || (got.Address != "") != runs {
			t.Errorf("%q costs %v at %s:%d", word, got.Price, got.Address, got.Port)
		}
	}
	for _, word := range []string{"deleted", "Terminated"} {
		p, _ := scripted(t, ok(vm(`"running"`, `"`+word+`"`)))
		if got, err := p.GetInstance(t.Context(), vmID); provider.KindOf(err) != provider.NotFound {
			t.Errorf("%s: %+v, %v; want it gone", word, got, err)
		}
	}
}

func TestInstanceFigures(t *testing.T) {
	for _, c := range []struct {
		old, new string
		want     func(provider.Instance) bool
	}{
		{`0.4455`, `"0.4455"`, func(i provider.Instance) bool { return *i.Price == money.MustParse("0.4455") }},
		{`0.4455`, `0.44550001`, func(i provider.Instance) bool { return *i.Price == money.MustParse("0.445501") }},
		{`0.4455`, `0`, func(i provider.Instance) bool { return i.Price == nil }},
		{`0.4455`, `null`, func(i provider.Instance) bool { return i.Price == nil }},
		{`,"rateHourly":0.4455`, ``, func(i provider.Instance) bool { return i.Price == nil }},
		{`20457`, `"20457"`, func(i provider.Instance) bool { return i.Port == 20457 }},
		{`20457`, `0`, func(i provider.Instance) bool { return i.Port == 0 && i.Address == "" }},
		{`20457`, `70000`, func(i provider.Instance) bool { return i.Port == 0 && i.Address == "" }},
		{`,{"internal_port":9443,"external_port":20457}`, ``, func(i provider.Instance) bool { return i.Port == 0 && i.Address == "" }},
		{`[{"internal_port":22`, `[{"external_port":20456},{"internal_port":22`, func(i provider.Instance) bool { return i.Port == 20457 }},
		{`"ipAddress":"198.51.100.7",`, ``, func(i provider.Instance) bool { return i.Port == 0 && i.Address == "" }},
		{`"198.51.100.7"`, `null`, func(i provider.Instance) bool { return i.Port == 0 && i.Address == "" }},
		{`"198.51.100.7"`, `" 198.51.100.7\n"`, func(i provider.Instance) bool { return i.Address == "198.51.100.7" }},
		{`"gs-a-1"`, `"gs-a-1-p8443"`, func(i provider.Instance) bool { return i.Tag == "gs-a-1" && i.Port == 8443 }},
		{`"gs-a-1"`, `null`, func(i provider.Instance) bool { return i.Tag == "" }},
		{`"portForwards":[`, `"portForwards":{"20457":"9443"},"x":[`, func(i provider.Instance) bool { return i.Port == 0 }},
		{`{"count":2,`, `{"count":"2",`, func(i provider.Instance) bool { return i.GPUCount == 2 }},
		{`"resources":{`, `"resources":null,"x":{`, func(i provider.Instance) bool { return i.GPUCount == 0 && !i.GPU.Known() && i.RestKeys == nil }},
		{`"resources":{`, `"resources":"none","x":{`, func(i provider.Instance) bool { return i.GPUCount == 0 && !i.GPU.Known() && i.Port == 20457 }},
		{`"gpus":{`, `"gpus":{"l4-pcie-24gb":{"count":1},`, func(i provider.Instance) bool { return i.GPUCount == 3 && !i.GPU.Known() }},
		{`"geforcertx4090-pcie-24gb":{`, `"geforcertx9090-pcie-99gb":{`, func(i provider.Instance) bool { return i.GPU == "unknown:geforcertx9090-pcie-99gb" }},
	} {
		p, _ := scripted(t, ok(vm(c.old, c.new)))
		if got, err := p.GetInstance(t.Context(), vmID); err != nil || !c.want(got) {
			t.Errorf("%s for %s: %+v, %v", c.new, c.old, got, err)
		}
	}
}

func TestGetAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		kind   provider.Kind
	}{
		{404, `{"error":"Instance not found","status":404}`, provider.NotFound}, {404, ``, provider.NotFound}, {404, `{}`, provider.NotFound},
		{200, `{"error":"Instance not found","status":404}`, provider.NotFound},
		{404, `<pre>Cannot GET /api/v2/instances/x</pre>`, provider.Unknown}, {404, `{"message":"Route not found"}`, provider.Unknown},
		{404, `{"error":"Unauthorized"}`, provider.Unauthorized}, {200, `{"error":"Unauthorized","status":401}`, provider.Unauthorized},
		{401, ``, provider.Unauthorized}, {403, `<html>`, provider.Unauthorized}, {429, `<html>`, provider.RateLimited},
		{500, ``, provider.Unavailable}, {200, `{"error":"Database error","status":500}`, provider.Unavailable}, {302, ``, provider.Unknown},
		{200, `{"error":"not today"}`, provider.Unknown}, {200, `<html>`, provider.Unknown}, {200, ``, provider.Unknown}, {200, `{}`, provider.Unknown},
		{200, `[]`, provider.Invalid}, {200, `{"data":null}`, provider.Unknown}, {200, vm(vmID, nodeID), provider.Unknown},
		{400, `{"error":"Insufficient permissions"}`, provider.Unknown},
	} {
		p, s := scripted(t, answerAs{status: c.status, body: c.body})
		if got, err := p.GetInstance(t.Context(), vmID); provider.KindOf(err) != c.kind || len(s.got) != 1 {
			t.Errorf("%d %s: %+v, %v; want kind %q", c.status, c.body, got, err, c.kind)
		}
	}
	for _, id := range []string{"", "..", "a/b", "a?b", "a b"} {
		p, _ := scripted(t)
		if _, err := p.GetInstance(t.Context(), id); provider.KindOf(err) != provider.Invalid {
			t.Errorf("get %q: %v", id, err)
		}
		if err := p.DestroyInstance(t.Context(), id); provider.KindOf(err) != provider.Invalid {
			t.Errorf("destroy %q: %v", id, err)
		}
	}
}

func item(id, name, status string) string {
	return `{"id":"` + id + `","name":"` + name + `","status":"` + status + `"}`
}

func TestAListIsCompletedByACallForEachThatIsAskedFor(t *testing.T) {
	others := item("v9", "somebody-else", "running") + "," + item("v8", "gs-b-1", "running") + "," + item("v7", "gs-a-7", "deleted")
	gone := failed(404, `{"error":"Instance not found","status":404}`)
	for name, list := range map[string]string{
		"data":       `{"data":[` + item(vmID, "gs-a-1", "running") + `,` + others + `]}`,
		"instances":  `{"data":{"instances":[` + item(vmID, "gs-a-1", "running") + `,` + others + `]}}`,
		"attributes": `{"data":[{"type":"virtualmachine","id":"` + vmID + `","attributes":{"name":"gs-a-1","status":"running"}},` + others + `]}`,
	} {
		for _, f := range []provider.InstanceFilter{{TagPrefix: "gs-a-"}, {Tag: "gs-a-1"}} {
			p, s := scripted(t, ok(list), ok(vm("", "")))
			got, err := p.ListInstances(t.Context(), f)
			if err != nil || len(got) != 1 || got[0].ID != vmID || got[0].Port != 20457 || got[0].GPU != "RTX4090" ||
				s.got[0].path != "/api/v2/instances" || s.got[0].query != "" || len(s.got) != 2 {
				t.Errorf("%s: %+v, %v after %+v", name, got, err, s.got)
			}
			// What the list has counts, when the instance is gone by the time that it is asked for.
			p, _ = scripted(t, ok(list), gone)
			if got, err := p.ListInstances(t.Context(), f); err != nil || len(got) != 1 || got[0].State != provider.StateRunning || got[0].Tag != "gs-a-1" {
				t.Errorf("%s, gone: %+v, %v", name, got, err)
			}
			p, _ = scripted(t, ok(list), ok(vm(`"running"`, `"terminated"`)))
			if got, err := p.ListInstances(t.Context(), f); err != nil || len(got) != 0 {
				t.Errorf("%s, terminated: %+v, %v", name, got, err)
			}
		}
	}
	for tag, want := range map[string]int{"gs-a-1": 1, "gs-b-1": 0} {
		p, _ := scripted(t, ok(`{"data":[{"id":"`+vmID+`","status":"running"}]}`), ok(vm("", "")))
		if got, err := p.ListInstances(t.Context(), provider.InstanceFilter{Tag: tag}); err != nil || len(got) != want {
			t.Errorf("a list without names: %d of %s, %v; want %d", len(got), tag, err, want)
		}
	}
	p, s := scripted(t, ok(`{"data":[`+vm("", "")+`,`+vm(`"running"`, `"creating"`)+`]}`))
	if got, err := p.ListInstances(t.Context(), provider.InstanceFilter{}); err != nil || len(got) != 2 || len(s.got) != 1 {
		t.Errorf("a list that says all: %+v, %v after %d calls", got, err, len(s.got))
	}
	p, _ = scripted(t, ok(`{"data":[]}`))
	if got, err := p.ListInstances(t.Context(), provider.InstanceFilter{}); err != nil || len(got) != 0 {
		t.Errorf("an empty list: %+v, %v", got, err)
	}
}

func TestListIsWholeOrAnError(t *testing.T) {
	one := `{"data":[` + item(vmID, "gs-a-1", "running") + `]}`
	for name, answers := range map[string][]answerAs{
		"no data":                {ok(`{}`)},
		"null":                   {ok(`{"data":null}`)},
		"null inside":            {ok(`{"data":{"instances":null}}`)},
		"nothing inside":         {ok(`{"data":{}}`)},
		"a word":                 {ok(`{"data":"none"}`)},
		"an odd one":             {ok(`{"data":[7]}`)},
		"one without id":         {ok(`{"data":[{"name":"gs-a-1"}]}`)},
		"one with an odd id":     {ok(`{"data":[` + item("a/b", "gs-a-1", "running") + `]}`)},
		"a refusal":              {ok(`{"error":"try later","data":[]}`)},
		"success false":          {ok(`{"success":false,"data":[]}`)},
		"not found":              {failed(404, `{"error":"Not found"}`)},
		"a bad token":            {failed(401, `{"error":"Unauthorized"}`)},
		"half":                   {ok(one[:20])},
		"another page":           {ok(`{"data":[],"links":{"next":"/api/v2/instances?page=2"}}`)},
		"more than there are":    {ok(`{"data":[],"meta":{"total":1}}`)},
		"an instance that fails": {ok(one), failed(500, ``)},
		"an instance not told":   {ok(one), ok(`{}`)},
		"another instance":       {ok(one), ok(vm(vmID, nodeID))},
	} {
		p, s := scripted(t, answers...)
		got, err := p.ListInstances(t.Context(), provider.InstanceFilter{})
		if err == nil || got != nil || provider.KindOf(err) == provider.NotFound || len(s.answers) > 0 || !strings.HasPrefix(err.Error(), "tensordock: list: ") {
			t.Errorf("%s: %+v, %v; want an error of the list that is not NotFound", name, got, err)
		}
	}
}

func TestDestroyAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		kind   provider.Kind
	}{
		{200, `{"data":{"type":"success","message":"Deleted"}}`, ""}, {204, ``, ""}, {202, `{"message":"on its way"}`, ""},
		{404, `{"error":"Instance not found"}`, provider.NotFound}, {200, `{"error":"Instance not found","status":404}`, provider.NotFound},
		{404, `<pre>Cannot DELETE</pre>`, provider.Unknown}, {409, `{"error":"Instance cannot be deleted while it is provisioning"}`, provider.Unknown},
		{200, `{"error":"busy","status":409}`, provider.Unknown}, {200, `{"data":{"type":"error","message":"no"}}`, provider.Unknown},
		{200, `{}`, provider.Unknown}, {200, ``, provider.Unknown}, {200, `<html>`, provider.Unknown},
		{401, ``, provider.Unauthorized}, {429, ``, provider.RateLimited}, {500, ``, provider.Unknown}, {503, ``, provider.Unavailable},
		{500, `{"data":{"type":"success"}}`, provider.Unknown},
	} {
		p, s := scripted(t, answerAs{status: c.status, body: c.body})
		if err := p.DestroyInstance(t.Context(), vmID); provider.KindOf(err) != c.kind {
			t.Errorf("%d %s: %v; want kind %q", c.status, c.body, err, c.kind)
		}
		if g := s.got[0]; g.method != "DELETE" || g.path != "/api/v2/instances/"+vmID || len(s.got) != 1 {
			t.Errorf("sent %+v", s.got)
		}
	}
}

func TestCheckCredentials(t *testing.T) {
	for _, c := range []struct {
		answer answerAs
		kind   provider.Kind
	}{
		{ok(`{"data":[]}`), ""}, {ok(`{"data":{"instances":[]}}`), ""}, {failed(401, ``), provider.Unauthorized}, {failed(403, ``), provider.Unauthorized},
		{ok(`{"error":"Unauthorized","status":401}`), provider.Unauthorized}, {failed(404, ``), provider.Unknown}, {ok(`<html>`), provider.Unknown},
		{failed(429, ``), provider.RateLimited}, {failed(500, ``), provider.Unavailable}, {ok(`{}`), provider.Unknown},
	} {
		p, s := scripted(t, c.answer)
		if err := p.CheckCredentials(t.Context()); provider.KindOf(err) != c.kind {
			t.Errorf("%v: %v; want kind %q", c.answer, err, c.kind)
		}
		if s.got[0].path != "/api/v2/instances" || len(s.got) != 1 {
			t.Errorf("sent %+v", s.got)
		}
	}
}

func TestHowLongToWait(t *testing.T) {
	for _, c := range []struct {
		header http.Header
		want   time.Duration
	}{
		{nil, 10 * time.Second}, {http.Header{"Retry-After": {"2"}}, 10 * time.Second}, {http.Header{"Retry-After": {"47"}}, 47 * time.Second},
		{http.Header{"Ratelimit-Reset": {"31"}}, 31 * time.Second}, {http.Header{"X-Ratelimit-Reset": {"1786000000"}}, 10 * time.Second},
		{http.Header{"X-Ratelimit-Reset": {"soon"}}, 10 * time.Second}, {http.Header{"X-Ratelimit-Reset": {"12"}, "Retry-After": {"11"}}, 12 * time.Second},
	} {
		p, _ := scripted(t, answerAs{status: 429, header: c.header})
		var e *provider.Error
		if err := p.CheckCredentials(t.Context()); !asProviderError(err, &e) || e.RetryAfter != c.want {
			t.Errorf("%v: %v, wait %v; want %s", c.header, err, e, c.want)
		}
	}
}

func asProviderError(err error, into **provider.Error) bool {
	e, ok := err.(*provider.Error) //nolint:errorlint // as the driver returns it
	*into = e
	return ok
}

func TestCredentialNames(t *testing.T) {
	for _, c := range []struct {
		creds map[string]string
		want  string
	}{
		{map[string]string{"TENSORDOCK_API_TOKEN": "a", "api-key": "c"}, "a"}, {map[string]string{"api-key": " c\n"}, "c"},
		{map[string]string{"TENSORDOCK_API_TOKEN": " \n", "api-key": "c"}, "c"}, {map[string]string{"VASTAI_API_KEY": "d"}, ""}, {nil, ""},
	} {
		got, err := FromCredentials(c.creds)
		if got.Token != c.want || (err == nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), "TENSORDOCK_API_TOKEN") {
			t.Errorf("%v: %q, %v; want %q", c.creds, got.Token, err, c.want)
		}
	}
	for _, c := range []Config{{}, {Token: " "}, {Token: "a b"}, {Token: "t", BaseURL: "dashboard"}} {
		if p, err := New(c); p != nil || err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

// TestPaces: the vendor counts all calls of an organisation together.
func TestPaces(t *testing.T) {
	for factor, want := range map[float64]time.Duration{0: 660 * time.Millisecond, 1: 660 * time.Millisecond, 0.01: 6600 * time.Microsecond} {
		if got := paces(factor); len(got) != 1 || got[endpoint] != want {
			t.Errorf("at %g: %v; want %s", factor, got, want)
		}
	}
	if len(paces(-1)) > 0 {
		t.Errorf("a negative factor paces")
	}
	if steps := ramSteps(); !slices.IsSorted(steps) {
		t.Errorf("the steps of RAM are not in order")
	}
}
