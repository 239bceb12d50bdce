package rest

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
)

// Phase is how far a call got that brought no complete answer.
type Phase string

// The phases. Only NotSent is proof that nothing happened at the provider.
const (
	// NotSent: not a byte of the request left (no connection, no turn in the pace, or a request we could not build).
	NotSent Phase = "not sent"
	// AnswerLost: the request may have arrived and taken effect; no answer came.
	AnswerLost Phase = "answer lost"
	// AnswerBroken: the provider answered, and not all of the answer could be read.
	AnswerBroken Phase = "answer broken"
)

// Error is a call without a complete answer. Its text contains no credential.
type Error struct {
	Phase Phase
	// Ended is the context's error where the caller's context ended first, else nil.
	Ended error
	// Wait is how long the endpoint's pace would have kept the call, where that is why it was not sent.
	Wait time.Duration
	text string
}

// Error is the cause in words.
func (e *Error) Error() string { return string(e.Phase) + ": " + e.text }

// Unwrap returns the context's error, if that is the cause. Other causes are kept as text only: what a transport
// wrapped may print the request's headers.
func (e *Error) Unwrap() error { return e.Ended }

// fail makes the *Error for a call that brought no complete answer.
func (c *Client) fail(ctx context.Context, phase Phase, err error) *Error {
	out := &Error{Phase: phase, Ended: ctx.Err(), text: c.Redact(err.Error())}
	var paced *paceError
	if errors.As(err, &paced) {
		out.Phase, out.Wait = NotSent, paced.wait
	}
	return out
}

// Fault turns an error of Do into the provider's error for operation op, by the rules of provider.Provider: a context
// that ended is Unavailable for a read and Unknown for a write; an unsent call is Unavailable, or RateLimited where
// its turn comes after the caller's deadline; a write whose answer was lost, and every broken answer, is Unknown.
func Fault(p provider.Name, op string, write bool, err error) *provider.Error {
	out := &provider.Error{Provider: p, Op: op, Kind: provider.Unknown, Err: err}
	var e *Error
	if !errors.As(err, &e) {
		return out
	}
	switch {
	case e.Ended != nil:
		out.Kind = readOr(write, provider.Unavailable, provider.Unknown)
	case e.Wait > 0:
		out.Kind, out.RetryAfter = provider.RateLimited, e.Wait
	case e.Phase == NotSent:
		out.Kind = provider.Unavailable
	case e.Phase == AnswerLost:
		out.Kind = readOr(write, provider.Unavailable, provider.Unknown)
	}
	return out
}

func readOr(write bool, read, written provider.Kind) provider.Kind {
	if write {
		return written
	}
	return read
}

// phaseOf is NotSent only for what fails before a connection stands.
func phaseOf(err error) Phase {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return NotSent
	}
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	if errors.As(err, &dns) || errors.As(err, &cert) {
		return NotSent
	}
	return AnswerLost
}

// retryAfter reads the header in both of its forms, seconds and date. 0 means none, or one that has passed.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(v, 64); err == nil {
		// Compared as a float: what is too large for a Duration has no defined one. NaN is no wait.
		switch {
		case seconds >= maxRetryAfter.Seconds():
			return maxRetryAfter
		case seconds > 0:
			return time.Duration(seconds * float64(time.Second))
		}
		return 0
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// maxRetryAfter bounds what a vendor can make us wait: past an hour asking again costs less than not knowing.
const maxRetryAfter = time.Hour

// redactor returns a function that replaces every secret, in the forms in which a server or library may echo it. The
// secrets live in the closure, where fmt cannot print them.
func redactor(secrets []string) func(string) string {
	var pairs []string
	// Longest first, so that a secret that contains another goes whole.
	sorted := slices.SortedFunc(slices.Values(secrets), func(a, b string) int { return len(b) - len(a) })
	for _, s := range sorted {
		if s == "" {
			continue
		}
		for _, form := range []string{
			s, quoted(s, true), quoted(s, false), url.QueryEscape(s), url.PathEscape(s),
			base64.StdEncoding.EncodeToString([]byte(s)), base64.URLEncoding.EncodeToString([]byte(s)),
		} {
			pairs = append(pairs, form, "[redacted]")
		}
	}
	return strings.NewReplacer(pairs...).Replace
}

// quoted is s as it stands inside a JSON string, with or without the escapes for HTML.
func quoted(s string, html bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	_ = enc.Encode(s) // a string always encodes
	return strings.TrimSuffix(strings.TrimPrefix(b.String(), `"`), "\"\n")
}

// maxText is how much of a vendor's words is kept: enough for a sentence, not for a page of HTML.
const maxText = 400

func clip(s string) string {
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
	if r := []rune(s); len(r) > maxText {
		return string(r[:maxText]) + "…"
	}
	return s
}
