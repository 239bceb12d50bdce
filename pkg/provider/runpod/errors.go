package runpod

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// The operations, as errors name them.
const (
	opSearch  = "search"
	opCreate  = "create"
	opGet     = "get"
	opList    = "list"
	opDestroy = "destroy"
	opCheck   = "check"
	opCharges = "charges"
)

// call makes a call and returns its answer if it is of a 2xx status and does not say that it failed. Every error is a
// *provider.Error for op.
func (p *Provider) call(ctx context.Context, op string, c rest.Call) (rest.Reply, error) {
	reply, err := p.rest.Do(ctx, c)
	if err != nil {
		return reply, rest.Fault(provider.RunPod, op, c.Write, err)
	}
	if e := p.failure(op, c, reply); e != nil {
		return reply, e
	}
	return reply, nil
}

// failure reads an answer that is no success: any status but 2xx, and a 2xx whose body is a failure's (§7). It returns
// nil for a success.
func (p *Provider) failure(op string, c rest.Call, r rest.Reply) *provider.Error {
	said, object := readProblem(r.Body)
	status := r.Status
	if status/100 == 2 {
		if !object || !said.failed() {
			return nil
		}
		status = said.status()
	}
	readable := object && said.says()
	text := hide(said.text(), c.Body)
	if !object {
		text = string(r.Body) // a proxy's page; another object could be a pod with all that is in its environment
	}
	e := &provider.Error{
		Provider: provider.RunPod,
		Op:       op,
		Code:     strconv.Itoa(r.Status),
		Message:  p.rest.Redact(text),
		Kind:     kind(op, c.Write, status, readable, strings.ToLower(text)),
	}
	switch e.Kind {
	case provider.RateLimited:
		e.RetryAfter = waitOf(r.Header, r.RetryAfter)
	case provider.Unavailable:
		e.RetryAfter = r.RetryAfter
	}
	if op == opCreate && object && podID.MatchString(string(said.ID)) {
		e.InstanceID = string(said.ID)
	}
	return e
}

// readProblem reads a JSON object; false for anything else, such as a proxy's page.
func readProblem(body []byte) (problem, bool) {
	var p problem
	return p, json.Unmarshal(body, &p) == nil && strings.HasPrefix(strings.TrimSpace(string(body)), "{")
}

// failed: a 2xx that is none.
func (p problem) failed() bool {
	return p.status() >= http.StatusBadRequest || p.Error != "" || p.lists()
}

// lists reports whether there are single failures.
func (p problem) lists() bool {
	return len(p.Errors) > 0 && string(p.Errors) != "null" && string(p.Errors) != "[]"
}

// status is the one in the body, 0 where it is no number: a pod's status is a word.
func (p problem) status() int {
	n, err := strconv.Atoi(string(p.Status))
	if err != nil {
		return 0
	}
	return n
}

// says reports whether the body is an account of a failure at all.
func (p problem) says() bool {
	return p.text() != "" || p.status() != 0
}

func (p problem) text() string {
	parts := []string{string(p.Title), string(p.Detail), string(p.Error), string(p.Message)}
	if p.lists() {
		parts = append(parts, string(p.Errors))
	}
	return strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
}

// hide takes the environment of a create out of what the vendor says of it: it holds the worker's key.
func hide(text string, body any) string {
	r, ok := body.(createRequest)
	if !ok {
		return text
	}
	var pairs []string
	for _, v := range r.Env {
		if len(v) >= shortestSecret {
			pairs = append(pairs, v, "[redacted]")
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// shortestSecret is the least length at which a value can be one: a shorter one would blot out words.
const shortestSecret = 8

// kind is the table of §7. There are no codes, so the status decides, and after it the words.
func kind(op string, write bool, status int, readable bool, text string) provider.Kind {
	switch {
	case status == http.StatusTooManyRequests:
		return provider.RateLimited
	case status == http.StatusUnauthorized:
		return provider.Unauthorized
	case status == http.StatusPaymentRequired || readable && status < 500 && noMoney.MatchString(text):
		return provider.NoBalance
	case !readable && status < 500:
		// A proxy's page or a firewall's: it says nothing of the key or of a pod (§1).
		return byStatus(write, status)
	case op == opCreate:
		return createKind(status, text)
	case status == http.StatusForbidden:
		return provider.Unauthorized // a good key without the right, which the message says (§1)
	case status == http.StatusNotFound && (op == opGet || op == opDestroy):
		return provider.NotFound
	case status == http.StatusConflict:
		return provider.Unavailable // busy, or not in the state for it: later (§5)
	case isOurs(status), status == http.StatusBadRequest:
		return provider.Invalid
	}
	return byStatus(write, status)
}

// createKind: what a refused create means. "No capacity" and a broken rule are 400 alike and both have only words, so
// rules are recognised and everything else is taken for capacity: the next offer is tried, as the vendor advises, where
// Invalid would hold the whole pool back for a wording that we do not know (§7).
func createKind(status int, text string) provider.Kind {
	switch {
	case says(text, capacityWords()):
		return provider.NoCapacity
	case status == http.StatusForbidden:
		return provider.Quota // not open to this account, others are: the description of the API
	case status == http.StatusUnprocessableEntity && strings.Contains(text, "minrampergpu"):
		return provider.Unsupported // an older server after all; offers without RAM can be had
	case isOurs(status), status == http.StatusNotFound:
		return provider.Invalid
	case status == http.StatusBadRequest && says(text, ruleWords()):
		return provider.Invalid
	case status == http.StatusBadRequest:
		return provider.NoCapacity
	case status == http.StatusConflict:
		return provider.Unavailable
	}
	return byStatus(true, status)
}

// isOurs: the request is wrong by the schema, or too long (§7).
func isOurs(status int) bool {
	switch status {
	case http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// byStatus is for an answer that says nothing we know: nothing is concluded from it but that it failed.
func byStatus(write bool, status int) provider.Kind {
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusForbidden:
		return provider.Unavailable
	}
	if status >= 500 && !write {
		return provider.Unavailable
	}
	return provider.Unknown
}

// capacityWords are how three generations of the API say that there is none (§7).
func capacityWords() []string {
	return []string{
		"no longer any instances available", "no instances available", "no instances currently available",
		"enough disk space", "does not have the resources", "try a different machine", "insufficient capacity",
		"out of stock", "sold out", "not enough free gpus",
	}
}

// ruleWords are how a 400 names a rule that the request breaks.
func ruleWords() []string {
	return []string{"mutually exclusive", "is required", "must be", "is invalid", "not supported", "cannot be combined",
		"at most", "malformed"}
}

func says(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// noMoney: "balance", "funds" and "spend limit" (§7), as words of their own; a load balancer is none of them.
var noMoney = regexp.MustCompile(`\b(balance|funds|spend(ing)? limit|insufficient credits?|not enough credits?)\b`)

// podID is what the vendor calls a pod. It goes into a path.
var podID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// window is one member of the RateLimit header: "minute";r=0;t=12 (§7).
var window = regexp.MustCompile(`r=([0-9]{1,9});\s*t=([0-9]{1,9})\b`)

// defaultWait is how long to stay away after a 429 that does not say.
const defaultWait = 10 * time.Second

// waitOf is how long to leave the API alone after a 429: Retry-After, or the longest window that is used up (§7).
func waitOf(h http.Header, retryAfter time.Duration) time.Duration {
	longest := retryAfter
	for _, m := range window.FindAllStringSubmatch(strings.Join(h.Values("RateLimit"), ","), -1) {
		left, err := strconv.Atoi(m[1])
		seconds, err2 := strconv.Atoi(m[2])
		if err == nil && err2 == nil && left == 0 {
			longest = max(longest, time.Duration(seconds)*time.Second)
		}
	}
	if longest <= 0 {
		return defaultWait
	}
	return longest
}

// odd is for a success that is not understood. What it means is open, so the kind is Unknown.
func (p *Provider) odd(op, format string, args ...any) *provider.Error {
	e := provider.Errorf(provider.RunPod, op, provider.Unknown, format, args...)
	e.Message = p.rest.Redact(e.Message)
	return e
}

func invalid(op, format string, args ...any) *provider.Error {
	return provider.Errorf(provider.RunPod, op, provider.Invalid, format, args...)
}
