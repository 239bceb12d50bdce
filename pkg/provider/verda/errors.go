package verda

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/munhq/gpuscale/pkg/money"
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

// call makes a call with a good token and returns its answer if it is a success; a token that is refused is replaced once
// (§1). A refused request was not carried out, so that a write may be sent again. Every error is a *provider.Error for op.
func (p *Provider) call(ctx context.Context, op string, c rest.Call) (rest.Reply, error) {
	refused := ""
	for {
		if err := p.tokens.ensure(ctx, refused); err != nil {
			return rest.Reply{}, p.noToken(ctx, op, err)
		}
		token := p.tokens.now()
		reply, err := p.rest.Do(ctx, c)
		if err != nil {
			// What a create or a destroy had sent before its caller left is not looked at.
			return reply, rest.Fault(provider.Verda, op, c.Write || ctx.Err() != nil && writes(op), err)
		}
		if reply.Status == http.StatusUnauthorized && refused == "" {
			refused = token
			continue
		}
		if e := p.failure(op, c.Write, reply); e != nil {
			return reply, e
		}
		return reply, nil
	}
}

// noToken is what a grant's failure means for an operation, of which nothing was sent.
func (p *Provider) noToken(ctx context.Context, op string, err error) *provider.Error {
	e := &provider.Error{Provider: provider.Verda, Op: op, Kind: provider.Unavailable, Message: p.redact("token: " + err.Error())}
	if ctx.Err() != nil {
		e.Err = ctx.Err()
		if writes(op) {
			e.Kind = provider.Unknown
		}
		return e
	}
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) || refused.Response == nil {
		return e
	}
	e.Message = p.redact("token: " + string(refused.Body))
	switch status := refused.Response.StatusCode; status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		e.Kind, e.Code = provider.Unauthorized, refused.ErrorCode
	case http.StatusTooManyRequests:
		e.Kind, e.RetryAfter = provider.RateLimited, minWait
	}
	return e
}

// writes reports an operation that changes something at the vendor, by one of its calls at least.
func writes(op string) bool { return op == opCreate || op == opDestroy }

// failure reads an answer that is no success: any status but 2xx. 207 is for whoever asked several things at once.
func (p *Provider) failure(op string, write bool, r rest.Reply) *provider.Error {
	if r.Status/100 == 2 {
		return nil
	}
	var f failure
	readable := json.Unmarshal(r.Body, &f) == nil
	text := f.Message
	if !readable {
		text = string(r.Body) // plain text happens (§7)
	}
	e := &provider.Error{
		Provider: provider.Verda,
		Op:       op,
		Code:     p.redact(code(r.Status, f.Code)),
		Message:  p.redact(text),
		Kind:     kind(op, write, r.Status, readable, strings.ToLower(f.Code), strings.ToLower(text)),
	}
	if e.Kind == provider.RateLimited {
		e.RetryAfter = max(minWait, r.RetryAfter)
	}
	if op == opCreate && identifier.MatchString(f.ID) {
		e.InstanceID = f.ID
	}
	return e
}

// minWait is for a 429 that does not say how long: the limits are not published (§7).
const minWait = 10 * time.Second

func code(status int, slug string) string {
	if slug == "" || len(slug) > 64 {
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status) + " " + slug
}

// kind is the tables of §5 and §7. Money and quota come before capacity, whose words they share; no word of an answer with
// a 5xx means that nothing was bought.
func kind(op string, write bool, status int, readable bool, slug, text string) provider.Kind {
	says := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(slug, w) || strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case status == http.StatusTooManyRequests:
		return provider.RateLimited
	case status >= 500:
		return byStatus(write, status)
	case status == http.StatusUnauthorized || slug == "unauthorized_request":
		return provider.Unauthorized
	case status == http.StatusPaymentRequired || says("insufficient_funds", "insufficient funds", "insufficient balance", "insufficient credit"):
		return provider.NoBalance
	}
	switch op {
	case opCreate:
		return refusedCreate(status, slug, says)
	case opGet, opDestroy:
		if says("invalid instance id", "discontinue a discontinued") || readable && status == http.StatusNotFound {
			return provider.NotFound
		}
		if says("discontinue a provisioning") {
			return provider.Unavailable
		}
	}
	switch status {
	case http.StatusForbidden:
		return provider.Unauthorized
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return provider.Invalid
	}
	return provider.Unknown
}

// refusedCreate is a create's 4xx. What is not understood of it stays open.
func refusedCreate(status int, slug string, says func(...string) bool) provider.Kind {
	switch {
	case says("limit exceeded", "quota"):
		return provider.Quota
	case says("no_capacity", "capacity", "out of stock", "not available", "unavailable", "insufficient"):
		return provider.NoCapacity
	case status == http.StatusBadRequest, status == http.StatusUnprocessableEntity, slug == "forbidden_action":
		return provider.Invalid
	case status == http.StatusForbidden:
		return provider.Unauthorized
	}
	return provider.Unknown
}

// byStatus is for a failure of the vendor's: nothing is concluded from it but that it failed.
func byStatus(write bool, status int) provider.Kind {
	if !write || status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout {
		return provider.Unavailable
	}
	return provider.Unknown
}

// hasEnded reports the vendor's word that an instance is over and that there is nothing to end (§5).
func hasEnded(err error) bool {
	var e *provider.Error
	return errors.As(err, &e) && e.Kind == provider.NotFound && strings.Contains(strings.ToLower(e.Message), "discontinue a discontinued")
}

// isFull reports that the account can have no more of something.
func isFull(err error) bool { return provider.KindOf(err) == provider.Quota }

// redact takes every credential out of a text, tokens included.
func (p *Provider) redact(s string) string {
	for _, token := range p.tokens.known() {
		s = strings.ReplaceAll(s, token, "[redacted]")
	}
	return p.rest.Redact(s)
}

// odd is for a success that is not understood. What it means is open, so the kind is Unknown.
func (p *Provider) odd(op, format string, args ...any) *provider.Error {
	e := provider.Errorf(provider.Verda, op, provider.Unknown, format, args...)
	e.Message = p.redact(e.Message)
	return e
}

func invalid(op, format string, args ...any) *provider.Error {
	return provider.Errorf(provider.Verda, op, provider.Invalid, format, args...)
}

// dearer is an offer whose price has risen above what may be paid, or that has none any more.
func dearer(instanceType string, now, most money.Dollars) *provider.Error {
	return provider.Errorf(provider.Verda, opCreate, provider.OfferGone, "%s costs $%s/h now, at most $%s/h may be paid", instanceType, now, most)
}

// unsent turns the failure of a read before the create, which concludes nothing about the offer, into one of which it is
// open what it means.
func unsent(err error) error {
	switch provider.KindOf(err) {
	case provider.Invalid, provider.NotFound:
		return provider.Errorf(provider.Verda, opCreate, provider.Unavailable, "%v", err)
	default:
		return err
	}
}
