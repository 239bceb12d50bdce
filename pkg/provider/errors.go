package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind says what a failure means. Callers act on kinds only; vendor codes stop at the driver.
type Kind string

// The closed list of kinds.
const (
	// OfferGone: this offer cannot be had any more; another can.
	OfferGone Kind = "OfferGone"
	// NoCapacity: the offer's scope has none now.
	NoCapacity Kind = "NoCapacity"
	// Quota: the account may not have more of this family in this region.
	Quota Kind = "Quota"
	// Unauthorized: the credentials are wrong or lack a right.
	Unauthorized Kind = "Unauthorized"
	// NoBalance: the account cannot pay.
	NoBalance Kind = "NoBalance"
	// RateLimited: asked too often; see RetryAfter.
	RateLimited Kind = "RateLimited"
	// Invalid: our request is wrong; asking again does not help.
	Invalid Kind = "Invalid"
	// NotFound: no such instance, said by a provider that accepted the credentials.
	NotFound Kind = "NotFound"
	// Unsupported: the provider has no such power.
	Unsupported Kind = "Unsupported"
	// Unavailable: the provider did not answer, or said that it cannot now.
	Unavailable Kind = "Unavailable"
	// Unknown: the answer was not understood, or it is not known whether the request took effect.
	Unknown Kind = "Unknown"
)

// Kinds lists every kind.
func Kinds() []Kind {
	return []Kind{OfferGone, NoCapacity, Quota, Unauthorized, NoBalance, RateLimited, Invalid, NotFound, Unsupported,
		Unavailable, Unknown}
}

// Error is every failure that crosses the Provider interface.
type Error struct {
	Kind     Kind
	Provider Name
	// Op is the operation, such as "create".
	Op string
	// Code is the vendor's own code, for people.
	Code string
	// Message is the vendor's own words, without credentials, for people.
	Message string
	// RetryAfter is how long to wait, where the provider says.
	RetryAfter time.Duration
	// InstanceID is set by CreateInstance when the call failed and an instance exists all the same: destroy it.
	InstanceID string
	// Err is the cause, if any.
	Err error
}

// Error reads "vast.ai: create: OfferGone: no_such_ask: …".
func (e *Error) Error() string {
	parts := []string{string(e.Provider), e.Op, string(e.Kind)}
	for _, s := range []string{e.Code, e.Message} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error whose message is formatted.
func Errorf(p Name, op string, k Kind, format string, args ...any) *Error {
	return &Error{Provider: p, Op: op, Kind: k, Message: fmt.Sprintf(format, args...)}
}

// KindOf is the kind of err: that of the *Error in its chain, Unavailable for a context that ended, Unknown for anything
// else, and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Unavailable
	}
	return Unknown
}

// Refused reports whether a failed create certainly rented nothing.
func Refused(err error) bool {
	var e *Error
	if !errors.As(err, &e) || e.InstanceID != "" {
		return false
	}
	switch e.Kind {
	case OfferGone, NoCapacity, Quota, Unauthorized, NoBalance, Invalid, Unsupported:
		return true
	case RateLimited, NotFound, Unavailable, Unknown:
		return false
	}
	return false
}
