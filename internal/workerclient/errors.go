package workerclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/munhq/gpuscale/internal/pki"
)

// UnreachableError says that no answer came: nobody listens, the network failed, or the connection broke. Whether the
// request arrived is unknown.
type UnreachableError struct {
	Endpoint string
	Err      error
}

// Error reads "worker at 1.2.3.4:9443: unreachable: …".
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("worker at %s: unreachable: %v", e.Endpoint, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// IdentityError says that somebody answered and one side did not accept the other: the answerer is not the claim's
// worker (an address that now belongs to someone else), or it refused our certificate. The request was not acted on.
type IdentityError struct {
	Endpoint string
	// Ours is true when the other side refused our certificate, false when we refused its.
	Ours bool
	Err  error
}

// Error says which side refused.
func (e *IdentityError) Error() string {
	if e.Ours {
		return fmt.Sprintf("worker at %s: refused our certificate: %v", e.Endpoint, e.Err)
	}
	return fmt.Sprintf("worker at %s: is not the claim's worker: %v", e.Endpoint, e.Err)
}

// Unwrap returns the cause.
func (e *IdentityError) Unwrap() error { return e.Err }

// StatusError is an HTTP answer other than success.
type StatusError struct {
	Endpoint string
	Code     int
	// Refused is the agent's mark (one of the agentapi.Refused constants), empty when there is none.
	Refused string
	// Message is the worker's own words, shortened, for people.
	Message string
}

// Error reads "worker at 1.2.3.4:9443: 503 (draining): …".
func (e *StatusError) Error() string {
	mark := ""
	if e.Refused != "" {
		mark = " (" + e.Refused + ")"
	}
	return fmt.Sprintf("worker at %s: %d%s: %s", e.Endpoint, e.Code, mark, e.Message)
}

// typed sorts a transport's error. A canceled context is nobody's failure and stays what it is; one that ran out of time
// is a worker that did not answer in it.
func typed(endpoint string, err error) error {
	var (
		verify  *tls.CertificateVerificationError
		name    *pki.NameError
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		op      *net.OpError
	)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &verify), errors.As(err, &name), errors.As(err, &host), errors.As(err, &unknown),
		errors.As(err, &invalid), errors.As(err, &record):
		return &IdentityError{Endpoint: endpoint, Err: err}
	case errors.As(err, &op) && op.Op == "remote error":
		// crypto/tls reports an alert so. Under TLS 1.3 a server refuses a client's certificate after the handshake, by
		// an alert in place of the answer.
		return &IdentityError{Endpoint: endpoint, Ours: true, Err: err}
	}
	return &UnreachableError{Endpoint: endpoint, Err: err}
}

// messageOf takes the message out of an OpenAI-shaped error, else the first line, bounded and printable.
func messageOf(body []byte) string {
	var shaped struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text := string(body)
	if json.Unmarshal(body, &shaped) == nil && shaped.Error.Message != "" {
		text = shaped.Error.Message
	}
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
