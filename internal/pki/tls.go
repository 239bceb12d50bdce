package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/munhq/gpuscale/internal/agentapi"
)

// ClientTLS is how a caller talks to the worker of one claim: it shows pair and accepts exactly the certificate that
// the CA issued for that claim, whatever address was dialled. TLS 1.3 only. The caller may replace Certificates by
// GetClientCertificate, and set Time.
func ClientTLS(pair Pair, caPEM []byte, claimUID string) (*tls.Config, error) {
	cert, err := pair.Certificate()
	if err != nil {
		return nil, fmt.Errorf("client pair: %w", err)
	}
	roots, _, err := trust(caPEM)
	if err != nil {
		return nil, err
	}
	if !label.MatchString(claimUID) {
		return nil, fmt.Errorf("claim UID %q is not a DNS label", claimUID)
	}
	name := agentapi.WorkerName(claimUID)
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		RootCAs:      roots,
		ServerName:   name,
		NextProtos:   []string{"http/1.1"},
		VerifyConnection: func(state tls.ConnectionState) error {
			// The chain and the name were verified. A certificate with further names was not issued by CA.Worker.
			if got := state.PeerCertificates[0].DNSNames; !slices.Equal(got, []string{name}) {
				return &NameError{Want: name, Got: got}
			}
			return nil
		},
	}, nil
}

// NameError says that a server's certificate, though the CA's, has other names than the worker's alone.
type NameError struct {
	Want string
	Got  []string
}

// Error names both.
func (e *NameError) Error() string {
	return fmt.Sprintf("worker certificate is for %s, not for %s alone", strings.Join(e.Got, ", "), e.Want)
}

// ServerTLS is how a worker listens: it shows the certificate in its boot data and talks only to clients that the CA in
// them certified as this installation's controller or gateway. TLS 1.3 only. The caller may set Time.
func ServerTLS(boot agentapi.Boot) (*tls.Config, error) {
	cert, err := Pair{CertPEM: []byte(boot.CertPEM), KeyPEM: []byte(boot.KeyPEM)}.Certificate()
	if err != nil {
		return nil, fmt.Errorf("worker pair: %w", err)
	}
	roots, installation, err := trust([]byte(boot.CAPEM))
	if err != nil {
		return nil, err
	}
	if installation != boot.Installation {
		return nil, fmt.Errorf("CA is of installation %s, boot data of %s", installation, boot.Installation)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    roots,
		NextProtos:   []string{"http/1.1"},
		// Every connection is verified afresh, so that an expired certificate is not carried on by a ticket.
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := roleOf(&state, installation)
			return err
		},
	}, nil
}

// CallerRole is the role of whoever sent r (agentapi.RoleController or RoleGateway), and "" for a request that did not
// come over a connection verified for the installation, which no route may serve.
func CallerRole(r *http.Request, installation string) string {
	if r.TLS == nil {
		return ""
	}
	role, err := roleOf(r.TLS, installation)
	if err != nil {
		return ""
	}
	return role
}

var errNotCaller = errors.New("client certificate is not of a caller of this installation")

func roleOf(state *tls.ConnectionState, installation string) (string, error) {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return "", errNotCaller
	}
	leaf := state.PeerCertificates[0]
	if len(leaf.URIs) != 1 {
		return "", errNotCaller
	}
	for _, role := range []string{agentapi.RoleController, agentapi.RoleGateway} {
		if leaf.URIs[0].String() == clientURI(installation, role).String() {
			return role, nil
		}
	}
	return "", errNotCaller
}

// Installation is the id of the installation whose CA is given.
func Installation(caPEM []byte) (string, error) {
	_, id, err := trust(caPEM)
	return id, err
}

func trust(caPEM []byte) (*x509.CertPool, string, error) {
	ca, err := parseCert(caPEM)
	if err != nil {
		return nil, "", fmt.Errorf("CA certificate: %w", err)
	}
	installation, err := installationOf(ca)
	if err != nil {
		return nil, "", err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return roots, installation, nil
}
