package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"regexp"
	"time"

	"github.com/munhq/gpuscale/internal/agentapi"
)

const (
	uriScheme = "gpuscale"
	// caLife outlasts any installation: the CA is the identity of the installation and is never rotated silently.
	caLife = 20 * 365 * 24 * time.Hour
	// skew is how far back certificates begin, since a rented machine's clock may be behind ours.
	skew = time.Hour
)

// label is what can stand as a host in a URI and as the first label of a worker's name.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// CA is the certificate authority of one installation. It is immutable and safe for concurrent use.
type CA struct {
	installation string
	cert         *x509.Certificate
	certPEM      []byte
	key          *ecdsa.PrivateKey
}

// NewCA makes the CA of an installation, whose id must be a DNS label. It is valid from an hour before now, for twenty
// years.
func NewCA(installation string, now time.Time) (*CA, error) {
	if !label.MatchString(installation) {
		return nil, fmt.Errorf("installation id %q is not a DNS label", installation)
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "gpuscale " + installation},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		URIs:                  []*url.URL{{Scheme: uriScheme, Host: installation}},
	}
	der, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &CA{installation: installation, cert: cert, certPEM: encode(typeCert, der), key: key}, nil
}

// Load reads a CA that PEM and KeyPEM wrote. It refuses a pair that does not belong together and a certificate that is
// not an installation's CA.
func Load(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	installation, err := installationOf(cert)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("CA key does not belong to the CA certificate")
	}
	return &CA{installation: installation, cert: cert, certPEM: encode(typeCert, cert.Raw), key: key}, nil
}

// Installation is the id the CA was made for.
func (ca *CA) Installation() string { return ca.installation }

// PEM is the CA certificate, which is public: it is the trust bundle of callers and workers alike.
func (ca *CA) PEM() []byte { return append([]byte(nil), ca.certPEM...) }

// KeyPEM is the CA's private key, for the Secret it is stored in and nowhere else.
func (ca *CA) KeyPEM() ([]byte, error) { return marshalKey(ca.key) }

// Client issues the pair of a caller in a role (agentapi.RoleController or RoleGateway), good for ttl from now.
func (ca *CA) Client(role string, ttl time.Duration, now time.Time) (Pair, error) {
	if !knownRole(role) {
		return Pair{}, fmt.Errorf("unknown role %q", role)
	}
	return ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "gpuscale " + role},
		NotBefore:   now.Add(-skew),
		NotAfter:    now.Add(ttl),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{clientURI(ca.installation, role)},
	})
}

// Worker issues the pair of the worker of a claim, good for ttl from now. The claim's UID must be a DNS label, as
// Kubernetes' UIDs are.
func (ca *CA) Worker(claimUID string, ttl time.Duration, now time.Time) (Pair, error) {
	if !label.MatchString(claimUID) {
		return Pair{}, fmt.Errorf("claim UID %q is not a DNS label", claimUID)
	}
	return ca.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "gpuscale worker"},
		NotBefore:   now.Add(-skew),
		NotAfter:    now.Add(ttl),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{agentapi.WorkerName(claimUID)},
	})
}

func (ca *CA) issue(template *x509.Certificate) (Pair, error) {
	if !template.NotAfter.After(template.NotBefore) {
		return Pair{}, errors.New("certificate would end before it begins")
	}
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := sign(template, ca.cert, key, ca.key)
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := marshalKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{CertPEM: encode(typeCert, der), KeyPEM: keyPEM}, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) ([]byte, error) {
	serial := make([]byte, 16)
	if _, err := rand.Read(serial); err != nil {
		return nil, err
	}
	serial[0] &= 0x7f // A serial number is positive.
	template.SerialNumber = new(big.Int).SetBytes(serial)
	return x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func clientURI(installation, role string) *url.URL {
	return &url.URL{Scheme: uriScheme, Host: installation, Path: "/" + role}
}

func knownRole(role string) bool {
	return role == agentapi.RoleController || role == agentapi.RoleGateway
}

// installationOf reads the id from a CA's own certificate.
func installationOf(cert *x509.Certificate) (string, error) {
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Scheme != uriScheme || !label.MatchString(cert.URIs[0].Host) {
		return "", errors.New("certificate is not an installation's CA")
	}
	return cert.URIs[0].Host, nil
}

const (
	typeCert = "CERTIFICATE"
	typeKey  = "PRIVATE KEY"
)

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// decode returns the one block of a PEM text.
func decode(kind string, text []byte) ([]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("no PEM block of type %s", kind)
	}
	return block.Bytes, nil
}
