package tensordock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
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
)

// call makes a call and returns its answer if it is a success and does not say otherwise. Every error is a
// *provider.Error for op.
func (p *Provider) call(ctx context.Context, op string, c rest.Call) (rest.Reply, error) {
	c.Endpoint = endpoint
	reply, err := p.rest.Do(ctx, c)
	if err != nil {
		return reply, rest.Fault(provider.TensorDock, op, c.Write, err)
	}
	if e := p.failure(op, c.Write, reply); e != nil {
		return reply, e
	}
	return reply, nil
}

// said is an answer as far as it speaks of success and failure.
type said struct {
	// status is the body's where it has one, else HTTP's (§3).
	status int
	// text is everything said about a failure; code the vendor's own word for it.
	text, code string
	// failed, invalid: it says that it failed, and that it failed for what was asked.
	failed, invalid bool
	// readable: the body is JSON, or empty.
	readable bool
	// id is that of the instance that the answer names all the same.
	id string
}

// failure reads an answer that is no success: any status but 2xx, and a 2xx whose body names an error (§3). It returns
// nil for a success.
func (p *Provider) failure(op string, write bool, r rest.Reply) *provider.Error {
	s := read(r)
	if !s.failed {
		return nil
	}
	e := &provider.Error{
		Provider: provider.TensorDock,
		Op:       op,
		Code:     p.rest.Redact(s.code),
		Message:  p.rest.Redact(s.text),
		Kind:     kind(op, write, s),
	}
	if e.Kind == provider.RateLimited {
		e.RetryAfter = wait(r)
	}
	if op == opCreate {
		e.InstanceID = s.id
	}
	return e
}

func read(r rest.Reply) said {
	s := said{status: r.Status, failed: r.Status < 200 || r.Status > 299}
	body := bytes.TrimSpace(r.Body)
	var complaints []complaint
	var a answer
	switch {
	case len(body) == 0:
		s.readable = true
	case body[0] == '[' && json.Unmarshal(body, &complaints) == nil:
		s.complain(complaints)
	case json.Unmarshal(body, &a) == nil:
		s.object(a)
	default:
		s.text = string(r.Body)
	}
	s.text = strings.Join(strings.Fields(s.text), " ")
	if s.code = strconv.Itoa(s.status); s.status != r.Status {
		s.code += " in " + strconv.Itoa(r.Status)
	}
	return s
}

// complain takes a bare array, which is never a success: each entry says what is wrong with the request, and where.
func (s *said) complain(complaints []complaint) {
	s.readable, s.failed, s.invalid = true, true, true
	var words []string
	for _, c := range complaints {
		path := make([]string, len(c.Path))
		for i, part := range c.Path {
			path[i] = string(part)
		}
		words = append(words, strings.Join(path, ".")+" "+string(c.Code)+": "+string(c.Message))
	}
	s.text = strings.Join(words, "; ")
}

func (s *said) object(a answer) {
	s.readable = true
	var data answerData
	_ = json.Unmarshal(a.Data, &data) // data may be a list, which says nothing here
	if status, err := strconv.Atoi(string(a.Status)); err == nil && status >= 100 && status < 600 {
		s.status = status
		s.failed = s.failed || status > 299
	}
	named := func(t text) bool { return !slices.Contains([]string{"", "false", "null", "{}", "[]"}, string(t)) }
	s.failed = s.failed || named(a.Error) || named(data.Error) || data.Type == "error" || a.Success == "false"
	s.text = strings.Join([]string{string(a.Error), string(a.Message), string(data.Error), string(data.Message)}, " ")
	s.id = string(data.ID)
}

// kind is the table of §7. The order matters: capacity is asked before "insufficient", which it may contain.
func kind(op string, write bool, s said) provider.Kind {
	words := strings.ToLower(s.text)
	says := func(phrases ...string) bool {
		return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(words, p) })
	}
	switch {
	case s.status == http.StatusTooManyRequests, says("too many requests", "rate limit"):
		return provider.RateLimited
	case s.status == http.StatusUnauthorized, s.status == http.StatusForbidden,
		s.status < 500 && says("unauthorized", "unauthenticated", "invalid token", "invalid api", "authentication"):
		return provider.Unauthorized
	case s.status >= 500, !s.readable:
		return byStatus(write, s.status)
	case s.status == http.StatusNotFound && (op == opGet || op == opDestroy):
		return notFound(says)
	case op == opCreate:
		return refusal(s, says)
	case s.invalid:
		return provider.Invalid
	}
	return provider.Unknown
}

// notFound is for a 404 about an instance. One about the path is no answer about the instance.
func notFound(says func(...string) bool) provider.Kind {
	if says("route", "endpoint", "cannot get", "cannot delete", "no such path") {
		return provider.Unknown
	}
	return provider.NotFound
}

// refusal is for a create that was refused, which rented nothing.
func refusal(s said, says func(...string) bool) provider.Kind {
	switch {
	case noPublicIP(says), says("no available nodes", "unavailable", "not available", "no longer available", "capacity",
		"not enough resources", "out of stock", "hostnode not found", "location not found", "already in use"):
		return provider.NoCapacity
	case s.status == http.StatusPaymentRequired, says("need at least $", "insufficient", "balance"):
		return provider.NoBalance
	case s.invalid, says("must be forwarded", "must be even", "even number"):
		return provider.Invalid
	}
	return provider.Unknown
}

func noPublicIP(says func(...string) bool) bool { return says("no available public ip") }

// wantsPublicIP reports whether a create was refused for want of an address of its own, and of nothing else.
func wantsPublicIP(err error) bool {
	var e *provider.Error
	if !errors.As(err, &e) || !provider.Refused(err) {
		return false
	}
	words := strings.ToLower(e.Message)
	return noPublicIP(func(phrases ...string) bool { return strings.Contains(words, phrases[0]) })
}

// byStatus is for an answer that says nothing we know: nothing is concluded from it but that it failed.
func byStatus(write bool, status int) provider.Kind {
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return provider.Unavailable
	}
	if status >= 500 && !write {
		return provider.Unavailable
	}
	return provider.Unknown
}

const (
	// minWait is the least pause after a 429 (§7).
	minWait = 10 * time.Second
	// maxReset bounds what is taken for a number of seconds; above it is a time of day.
	maxReset = 3600
)

// wait is how long to leave the API alone after a 429: what a header says, and minWait at least. The names of the
// headers are not confirmed (§7).
func wait(r rest.Reply) time.Duration {
	w := max(minWait, r.RetryAfter)
	for _, name := range []string{"RateLimit-Reset", "X-RateLimit-Reset"} {
		if seconds, err := strconv.ParseFloat(r.Header.Get(name), 64); err == nil && seconds > 0 && seconds <= maxReset {
			w = max(w, time.Duration(seconds*float64(time.Second)))
		}
	}
	return w
}

// odd is for a success that is not understood. What it means is open, so the kind is Unknown.
func (p *Provider) odd(op, format string, args ...any) *provider.Error {
	e := provider.Errorf(provider.TensorDock, op, provider.Unknown, format, args...)
	e.Message = p.rest.Redact(e.Message)
	return e
}

func invalid(op, format string, args ...any) *provider.Error {
	return provider.Errorf(provider.TensorDock, op, provider.Invalid, format, args...)
}
