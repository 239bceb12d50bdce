package vastai

import (
	"context"
	"encoding/json"
	"errors"
	"math"
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

// call makes a call and returns its answer if it is status 200 and does not say that it failed. Every error is a
// *provider.Error for op.
func (p *Provider) call(ctx context.Context, op string, c rest.Call) (rest.Reply, error) {
	reply, err := p.rest.Do(ctx, c)
	if err != nil {
		return reply, rest.Fault(provider.VastAI, op, c.Write, err)
	}
	if e := p.failure(op, c.Write, reply); e != nil {
		return reply, e
	}
	return reply, nil
}

// failure reads an answer that is no success: any status but 200, and a 200 whose body says success: false or names
// an error (§3, §7). It returns nil for a success.
func (p *Provider) failure(op string, write bool, r rest.Reply) *provider.Error {
	a, readable := readAnswer(r.Body)
	failed := r.Status != http.StatusOK || readable && (a.Success != nil && !*a.Success || a.Error != "")
	if !failed {
		return nil
	}
	text := strings.Join(strings.Fields(strings.Join([]string{
		string(a.Msg), string(a.Message), string(a.Detail)}, " ")), " ")
	if !readable {
		text = instanceKey.ReplaceAllString(string(r.Body), "$1[redacted]") // plain text happens (§7)
	}
	e := &provider.Error{
		Provider: provider.VastAI,
		Op:       op,
		Code:     p.rest.Redact(code(r.Status, string(a.Error))),
		Message:  p.rest.Redact(text),
		Kind:     kind(op, write, r.Status, strings.ToLower(string(a.Error)), strings.ToLower(text)),
	}
	if e.Kind == provider.RateLimited {
		e.RetryAfter = wait(op, text, r.RetryAfter)
	}
	if op == opCreate && readable {
		e.InstanceID = contractID(a.NewContract)
	}
	return e
}

// instanceKey is the key of an instance in an answer that cannot be read as JSON.
var instanceKey = regexp.MustCompile(`("instance_api_key"\s*:\s*")[^"]*`)

// readAnswer takes what it can of an answer; false means that it is no JSON object. A field of another type than it
// should have counts as not said.
func readAnswer(body []byte) (answer, bool) {
	var a answer
	var odd *json.UnmarshalTypeError
	err := json.Unmarshal(body, &a)
	if err == nil {
		return a, true
	}
	return a, errors.As(err, &odd) && odd.Field != ""
}

func code(status int, slug string) string {
	if slug == "" || len(slug) > 64 {
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status) + " " + slug
}

// kind is the table of §7. The order matters: a bad key is a 404 too, and an offer that is gone often carries the
// slug invalid_args.
func kind(op string, write bool, status int, slug, text string) provider.Kind {
	says := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(slug, w) || strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case status == http.StatusTooManyRequests || says("too frequent", "rate_limit_exceeded"):
		return provider.RateLimited
	case says("auth_error", "invalid user key") || status == http.StatusUnauthorized:
		return provider.Unauthorized
	case says("missing_billing", "spend_rate_limit", "insufficient_credit", "insufficient credit", "insufficient balance",
		"insufficient funds", "lacks credit", "not enough credit", "out of credit", "add credit") || status == http.StatusPaymentRequired:
		return provider.NoBalance
	case op == opCreate && offerGone(status, says):
		return provider.OfferGone
	case status == http.StatusForbidden:
		return provider.Unauthorized
	case (op == opGet || op == opDestroy) && status == http.StatusNotFound && says("no_such_instance", "not_found"):
		return provider.NotFound
	case status < 500 && says("invalid_args", "invalid_price", "invalid_request", "no_ssh_key_for_vm"):
		return provider.Invalid
	}
	return byStatus(write, status)
}

// offerGone: under 400, 404 and 410 alike, and "is not your own" under 403, where a host may rent nobody else's (§7). A
// bid that is refused though it is within the range of bids was passed by the market since the search (§3).
func offerGone(status int, says func(...string) bool) bool {
	switch status {
	case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusGone:
		return says("no_such_ask", "not available", "no longer available") ||
			says("invalid_price") && !says("set a bid price")
	case http.StatusForbidden:
		return says("is not your own")
	}
	return false
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
	// minWait: below five seconds a 429 tends to be answered by another (§7).
	minWait = 5 * time.Second
	// createPenalty is what a create that came too early costs (§7).
	createPenalty = 12 * time.Second
)

var threshold = regexp.MustCompile(`threshold\s*=\s*([0-9]+(?:\.[0-9]+)?)`)

// wait is how long to leave an endpoint alone after a 429: the header where there is one, else the threshold that the
// body names ("endpoint threshold=4.5") and half a second, with the floors above.
func wait(op, text string, header time.Duration) time.Duration {
	w := max(minWait, header)
	if op == opCreate {
		w = max(w, createPenalty)
	}
	if m := threshold.FindStringSubmatch(text); m != nil {
		if seconds, err := strconv.ParseFloat(m[1], 64); err == nil && seconds < 3600 {
			w = max(w, time.Duration(math.Ceil(seconds*1000))*time.Millisecond+500*time.Millisecond)
		}
	}
	return w
}

// contractID is the id in new_contract, empty where there is none.
func contractID(n json.Number) string {
	if id, err := n.Int64(); err == nil && id > 0 {
		return strconv.FormatInt(id, 10)
	}
	return ""
}

// odd is for a 200 that is not understood. What it means is open, so the kind is Unknown.
func (p *Provider) odd(op, format string, args ...any) *provider.Error {
	e := provider.Errorf(provider.VastAI, op, provider.Unknown, format, args...)
	e.Message = p.rest.Redact(e.Message)
	return e
}

func invalid(op, format string, args ...any) *provider.Error {
	return provider.Errorf(provider.VastAI, op, provider.Invalid, format, args...)
}
