package providertest

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// NewBrokenHarness makes the harness of one case whose drivers are all broken in the same way.
type NewBrokenHarness func(T, Case, Breakage) Harness

// RunBroken runs each case of the suite and of own against drivers that are wrong in what the case is about, and fails
// where one passes, and where a case has no broken driver that tries it: a case that nothing fails proves nothing. Left
// out are cases whose power the driver does not declare, those that the harness cannot show, and those proved elsewhere,
// by name. The good driver has to pass in the same way of running a case.
func RunBroken(t *testing.T, newHarness NewBrokenHarness, own []Case, broken []BrokenDriver, elsewhere ...string) {
	all := slices.Concat(Cases(), own)
	caught := map[string]bool{}
	for _, name := range elsewhere {
		caught[name] = true
	}
	hidden := map[string]bool{} // not to be shown, or not declared
	for _, c := range all {
		r := attempt(t.Context(), func(ct T) { c.Check(ct, declared(ct, c, newHarness(ct, c, unbroken))) })
		hidden[c.Name] = r.skipped
		if len(r.complaints) > 0 {
			t.Errorf("the good driver fails %s: %q", c.Name, r.complaints)
		}
	}
	for _, b := range broken {
		t.Run(b.Name, func(t *testing.T) {
			for _, name := range strings.Fields(b.Cases) {
				i := slices.IndexFunc(all, func(c Case) bool { return c.Name == name })
				if i < 0 {
					t.Fatalf("there is no case %s", name)
				}
				caught[name] = true
				failsAs(t, all[i], func(ct T, c Case) Harness { return newHarness(ct, c, b.How) })
			}
		})
	}
	for _, c := range all {
		if !caught[c.Name] && !hidden[c.Name] {
			t.Errorf("no broken driver tries %s", c.Name)
		}
	}
}

// declared skips a case whose power the harness's driver, broken or not, does not declare.
func declared(t T, c Case, h Harness) Harness {
	if c.Needs != nil && !c.Needs(h.Driver().Capabilities()) {
		t.Skipf("not declared")
	}
	return h
}

// failsAs fails the test unless the case has something to say, in words and not by a panic.
func failsAs(t *testing.T, c Case, newHarness NewHarness) {
	t.Helper()
	r := attempt(t.Context(), func(ct T) { c.Check(ct, declared(ct, c, newHarness(ct, c))) })
	if len(r.complaints) == 0 && !r.skipped {
		t.Errorf("%s lets this driver pass", c.Name)
	}
	for _, complaint := range r.complaints {
		if strings.HasPrefix(complaint, "panic") {
			t.Errorf("%s: %s", c.Name, complaint)
		}
	}
}

// Misreading is a driver that reads one form of a figure as another, and the case that it must fail: what it gets is
// changed before it reads it.
type Misreading struct{ Case, Form, As string }

// RunMisread is RunBroken for what a driver reads inside. newHarness puts the wrapper around the driver's transport.
func RunMisread(t *testing.T, newHarness func(T, Case, func(http.RoundTripper) http.RoundTripper) Harness, own []Case, misreadings []Misreading) {
	all := slices.Concat(Cases(), own)
	for _, m := range misreadings {
		t.Run(m.Case, func(t *testing.T) {
			form := regexp.MustCompile(m.Form)
			i := slices.IndexFunc(all, func(c Case) bool { return c.Name == m.Case })
			if i < 0 {
				t.Fatalf("there is no case %s", m.Case)
			}
			failsAs(t, all[i], func(ct T, c Case) Harness {
				return newHarness(ct, c, func(next http.RoundTripper) http.RoundTripper { return misread{next, form, m.As} })
			})
		})
	}
}

type misread struct {
	next http.RoundTripper
	form *regexp.Regexp
	as   string
}

// RoundTrip changes every answer.
func (m misread) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := m.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	body = m.form.ReplaceAll(body, []byte(m.as))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}
