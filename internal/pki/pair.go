package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"
)

// Pair is a certificate and its private key as PEM. KeyPEM is a secret.
type Pair struct {
	CertPEM []byte
	KeyPEM  []byte
}

// Certificate is the pair as crypto/tls takes it. It fails when the two do not belong together.
func (p Pair) Certificate() (tls.Certificate, error) { return tls.X509KeyPair(p.CertPEM, p.KeyPEM) }

// NotAfter is when the certificate ends, for whoever renews it.
func (p Pair) NotAfter() (time.Time, error) {
	cert, err := parseCert(p.CertPEM)
	if err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter, nil
}

// String hides the key, so that a pair printed by mistake gives nothing away.
func (p Pair) String() string { return "pki.Pair(…)" }

// GoString is String, for %#v.
func (p Pair) GoString() string { return p.String() }

func parseCert(text []byte) (*x509.Certificate, error) {
	der, err := decode(typeCert, text)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func marshalKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode(typeKey, der), nil
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	der, err := decode(typeKey, text)
	if err != nil {
		return nil, err
	}
	// The parser's error may quote what it read, which is a key: it is not passed on.
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("not a PKCS #8 key")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("not an ECDSA P-256 key")
	}
	return key, nil
}
