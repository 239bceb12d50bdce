package localkube

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
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is far longer than any local cluster is kept; nothing renews these certificates.
const lifetime = 10 * 365 * 24 * time.Hour

// Files of the pki folder. A pair is NAME.crt and NAME.key.
const (
	pairCA                = "ca"
	pairEtcdCA            = "etcd-ca"
	pairEtcd              = "etcd"
	pairServing           = "serving"
	pairAdmin             = "admin"
	pairControllerManager = "kube-controller-manager"
	pairScheduler         = "kube-scheduler"
	serviceAccountKey     = "service-account.key"
)

// pki is a folder of keys and certificates.
type pki string

func (p pki) cert(pair string) string { return filepath.Join(string(p), pair+".crt") }
func (p pki) key(pair string) string  { return filepath.Join(string(p), pair+".key") }
func (p pki) serviceAccount() string  { return filepath.Join(string(p), serviceAccountKey) }

// ensurePKI returns the folder at dir, written when it is not there yet. It is renamed into place complete, because
// tokens and certificates that the cluster's data refer to must not be replaced by halves.
func ensurePKI(dir string, now time.Time) (pki, error) {
	if _, err := os.Stat(dir); err == nil {
		return pki(dir), nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), ".pki-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }() // Nothing is left of it after the rename, and litter after a failure.
	if err := writePKI(pki(work), now); err != nil {
		return "", fmt.Errorf("write certificates: %w", err)
	}
	return pki(dir), os.Rename(work, dir)
}

func writePKI(p pki, now time.Time) error {
	// etcd has a CA of its own: whoever the cluster's CA vouches for must still go through the API server.
	etcdCA, err := newAuthority(p, pairEtcdCA, now)
	if err != nil {
		return err
	}
	ca, err := newAuthority(p, pairCA, now)
	if err != nil {
		return err
	}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	client := both[1:]
	for _, leaf := range []struct {
		pair    string
		ca      *authority
		subject pkix.Name
		usage   []x509.ExtKeyUsage
	}{
		{pairEtcd, etcdCA, pkix.Name{CommonName: "etcd"}, both},
		{pairServing, ca, pkix.Name{CommonName: "kube-apiserver"}, both[:1]},
		{pairAdmin, ca, pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}, client},
		// In system:masters, because its controllers run under its name here instead of a service account each, which
		// saves some forty tokens and clients.
		{pairControllerManager, ca, pkix.Name{
			CommonName: "system:kube-controller-manager", Organization: []string{"system:masters"},
		}, client},
		{pairScheduler, ca, pkix.Name{CommonName: "system:kube-scheduler"}, client},
	} {
		if err := leaf.ca.issue(p, leaf.pair, leaf.subject, leaf.usage, now); err != nil {
			return err
		}
	}
	_, err = newKey(p.serviceAccount())
	return err
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(p pki, pair string, now time.Time) (*authority, error) {
	key, err := newKey(p.key(pair))
	if err != nil {
		return nil, err
	}
	template, err := template(pkix.Name{CommonName: "gpuscale local " + pair}, now)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, writePEM(p.cert(pair), "CERTIFICATE", der)
}

// issue writes a key and a certificate that is valid for this machine's loopback.
func (a *authority) issue(p pki, pair string, subject pkix.Name, usage []x509.ExtKeyUsage, now time.Time) error {
	key, err := newKey(p.key(pair))
	if err != nil {
		return err
	}
	template, err := template(subject, now)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = usage
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writePEM(p.cert(pair), "CERTIFICATE", der)
}

func template(subject pkix.Name, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour), // A clock that is set back while the cluster runs.
		NotAfter:     now.Add(lifetime),
	}, nil
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
